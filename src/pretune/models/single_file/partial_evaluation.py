"""Partially evaluate Python source: replace expressions whose values are known for a model, and drop unreachable code.

What is known: the attributes of the modules of a network (`self.norm is None`), constant arguments, that the network does not train, and
that no custom kernel runs. Expressions with unknown values stay as they are.
"""

from __future__ import annotations

import ast
import copy
import operator
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import torch
from torch import nn

from pretune.nn.attention.patterns import Pattern
from pretune.nn.dropout import Dropout

UNKNOWN: Any = type("Unknown", (), {"__repr__": lambda self: "UNKNOWN"})()
PLAIN = (type(None), bool, int, float, str)
# Functions with a known result
NEVER = {"supports_custom_kernels": False, "torch.onnx.is_in_onnx_export": False, "defers_top_layer": False}
NOT_PASSED = {"state": None, "real": None}  # parameters of `forward` that exported code does not use
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


@dataclass(frozen=True)
class Same:
    """The values (modules or tensors) that one expression, such as `self.norm`, has in several instances of a class."""

    values: tuple[Any, ...]


@dataclass
class Scope:
    """The values that are known before a function runs: constants, globals and, for a method, its possible `self`."""

    names: Mapping[str, Any]  # the globals of the module
    instances: tuple[nn.Module, ...] = ()
    constants: dict[str, Any] = field(default_factory=dict)
    columns: frozenset[str] = frozenset()  # the per-token features of inputs
    absent: Mapping[str, Any] = field(default_factory=dict)  # attributes of `context` and `packed` that are constant
    local: frozenset[str] = frozenset()  # names that are not globals
    values: dict[str, Any] = field(default_factory=dict)  # local names whose value is a module or a tensor

    def evaluate(self, node: ast.AST) -> Any:
        """Return the value of an expression if it is known without running the code, else UNKNOWN."""
        match node:
            case ast.Constant(value):
                return value
            case ast.Tuple(elts):
                values = [self.evaluate(item) for item in elts]
                return UNKNOWN if any(value is UNKNOWN for value in values) else tuple(values)
            case ast.UnaryOp(ast.USub(), operand):
                value = self.evaluate(operand)
                return -value if type(value) in (int, float) else UNKNOWN
            case ast.UnaryOp(ast.Not(), operand):
                value = truth(self.evaluate(operand))
                return UNKNOWN if value is UNKNOWN else not value
            case ast.BoolOp(kind, values):
                return self._junction(isinstance(kind, ast.Or), values)
            case ast.Compare(left, [kind], [right]):
                return self._compare(type(kind), self.evaluate(left), self.evaluate(right))
            case ast.IfExp(test, body, orelse):
                chosen = truth(self.evaluate(test))
                return UNKNOWN if chosen is UNKNOWN else self.evaluate(body if chosen else orelse)
            case ast.Subscript(value, ast.Constant(int(index))):
                known = self.evaluate(value)
                return known[index] if isinstance(known, tuple) else UNKNOWN
            case ast.Subscript(ast.Attribute(_, "columns"), ast.Constant(str())):
                return Same(())
            case ast.Name(name):
                if name in self.constants:
                    return self.constants[name]
                if name in self.values:
                    return self.values[name]
                return UNKNOWN if name in self.local else self.names.get(name, UNKNOWN)
            case ast.Attribute(ast.Name("self"), "training"):
                return False
            case ast.Attribute(ast.Name("self"), name) if self.instances:
                return attribute(self.instances, name)
            case ast.Attribute(value, "columns"):
                return self.columns
            case ast.Attribute(ast.Name("context" | "packed"), name) if name in self.absent:
                return self.absent[name]
            case ast.Attribute(value, name):
                known = self.evaluate(value)
                if isinstance(known, Same):
                    return attribute(known.values, name) if known.values else UNKNOWN
                if is_dataclass(known) and not isinstance(known, type | Pattern):
                    return getattr(known, name, UNKNOWN)
                return getattr(known, name, UNKNOWN) if type(known).__name__ == "module" else UNKNOWN
            case ast.Call(function, arguments):
                return self._call(ast.unparse(function), arguments)
        return UNKNOWN

    def _junction(self, stop: bool, values: list[ast.expr]) -> Any:
        """Return the value of `or` (if `stop` is True) or `and` (False) over expressions, or UNKNOWN."""
        found = [truth(self.evaluate(value)) for value in values]
        if any(value is stop for value in found):
            return stop
        return UNKNOWN if UNKNOWN in found else not stop

    def _compare(self, kind: type[ast.cmpop], left: Any, right: Any) -> Any:
        """Return the result of comparing two values with the operator class `kind`, or UNKNOWN if one is unknown."""
        if UNKNOWN in (left, right):
            return UNKNOWN
        if isinstance(left, Same) or isinstance(right, Same):
            if None in (left, right) and kind in (ast.Is, ast.IsNot):
                return kind is ast.IsNot
            return UNKNOWN
        return COMPARISONS[kind](left, right)

    def _call(self, name: str, arguments: list[ast.expr]) -> Any:
        """Return the result of calling the function `name` if it is known without running it, else UNKNOWN."""
        if name in NEVER:
            return NEVER[name]
        if name == "effective_pattern" and self.evaluate(arguments[1]) is None:
            return self.evaluate(arguments[0])
        if name == "isinstance":
            value, kind = map(self.evaluate, arguments)
            if UNKNOWN in (value, kind):
                return UNKNOWN
            found = {isinstance(each, kind) for each in (value.values if isinstance(value, Same) else [value])}
            return found.pop() if len(found) == 1 else UNKNOWN
        return UNKNOWN


def truth(value: Any) -> Any:
    """Return the truth value of a number, string, tuple, set, or None, and UNKNOWN for any other value."""
    return bool(value) if isinstance(value, (*PLAIN, tuple, frozenset)) else UNKNOWN


def attribute(instances: tuple[Any, ...], name: str) -> Any:
    """Return the value that an attribute has in all the given modules, or UNKNOWN if they differ."""
    if isinstance(getattr(type(instances[0]), name, None), property):
        return UNKNOWN
    if not all(hasattr(instance, name) for instance in instances):
        return UNKNOWN
    values = tuple(getattr(instance, name) for instance in instances)
    first = values[0]
    if len(set(map(type, values))) > 1 and not all(isinstance(value, nn.Module) for value in values):
        return UNKNOWN
    if isinstance(first, nn.Module | torch.Tensor):
        return Same(values)
    if isinstance(first, Pattern) and all(value.reach == first.reach for value in values):
        return first.reach if first.reach is not None else first
    return first if all(value is first or value == first for value in values) else UNKNOWN


class Folding(ast.NodeTransformer):
    """A syntax tree transformer that replaces known expressions and removes branches that cannot be reached."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def visit_If(self, node: ast.If) -> Any:
        """Replace a conditional statement whose condition is known with the branch that runs."""
        chosen = truth(self.scope.evaluate(node.test))
        if chosen is UNKNOWN:
            return self.generic_visit(node)
        return [done for line in (node.body if chosen else node.orelse) for done in as_list(self.visit(line))]

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        """Replace a conditional expression whose condition is known with the expression that is chosen."""
        chosen = truth(self.scope.evaluate(node.test))
        return self.generic_visit(node) if chosen is UNKNOWN else self.visit(node.body if chosen else node.orelse)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """Replace `and` and `or` by their value if it is known, or else remove operands with known values."""
        known = self.scope.evaluate(node)
        if known is not UNKNOWN:
            return ast.Constant(known)
        neutral = isinstance(node.op, ast.And)
        values = [value for value in node.values if truth(self.scope.evaluate(value)) is not neutral]
        return self.visit(values[0]) if len(values) == 1 else ast.BoolOp(node.op, [self.visit(x) for x in values])

    def visit_Match(self, node: ast.Match) -> Any:
        """Replace a `match` statement on a known string with the body of the case that runs."""
        known = self.scope.evaluate(node.subject)
        if known is UNKNOWN:
            return self.generic_visit(node)
        for case in node.cases:
            pattern = case.pattern
            if isinstance(pattern, ast.MatchAs) or (
                isinstance(pattern, ast.MatchValue) and self.scope.evaluate(pattern.value) == known
            ):
                return [done for line in case.body for done in as_list(self.visit(line))]
        return None

    def visit_For(self, node: ast.For) -> Any:
        """Remove a `for` loop over a module container that is known to be empty."""
        container = node.iter.func.value if isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Attribute) else node.iter  # fmt: skip
        known = self.scope.evaluate(container)
        if isinstance(known, Same) and all(isinstance(x, nn.ModuleDict | nn.ModuleList) and not len(x) for x in known.values):  # fmt: skip
            return None
        return self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> Any:
        """Replace a list comprehension over known values with a list of its elements."""
        (loop, *further) = node.generators
        known = self.scope.evaluate(loop.iter)
        if further or loop.ifs or not isinstance(loop.target, ast.Name) or not isinstance(known, tuple):
            return self.generic_visit(node)
        items = [Renaming({loop.target.id: as_node(value)}).visit(copy.deepcopy(node.elt)) for value in known]
        return self.visit(ast.List(items, ast.Load()))

    def visit_Assert(self, node: ast.Assert) -> Any:
        """Remove assertions, which are for type checkers."""
        return None

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Remove the annotations of local variables."""
        if node.value is None or not isinstance(node.target, ast.Name):
            return self.generic_visit(node)
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Assign(self, node: ast.Assign) -> Any:
        """Split an assignment such as `a, b = 1, x` into one of constants and one of other values."""
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            pairs = list(zip(target.elts, value.elts, strict=True))
            known = [
                pair for pair in pairs if isinstance(pair[0], ast.Name) and type(self.scope.evaluate(pair[1])) in PLAIN
            ]
            if known:
                other = [pair for pair in pairs if pair not in known]
                lines = [ast.Assign([name], ast.Constant(self.scope.evaluate(x))) for name, x in known]
                if len(other) == 1:
                    lines.append(ast.Assign([other[0][0]], other[0][1]))
                elif other:
                    names, values = (ast.Tuple(list(part), kind()) for part, kind in zip(zip(*other, strict=True), (ast.Store, ast.Load), strict=True))  # fmt: skip
                    lines.append(ast.Assign([names], values))
                return [self.generic_visit(ast.copy_location(line, node)) for line in lines]
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        """Replace a name whose value is a known constant with that constant."""
        if isinstance(node.ctx, ast.Load) and node.id in self.scope.constants:
            return as_node(self.scope.constants[node.id])
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """Replace an attribute of `context` or `packed` that is constant in exported code with its value."""
        if (
            isinstance(node.value, ast.Name)
            and node.value.id in ("context", "packed")
            and node.attr in self.scope.absent
        ):
            return as_node(self.scope.absent[node.attr])
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        """Remove calls without effect, such as identities, dropout, and casts of parameters to their own type."""
        function = self.scope.evaluate(node.func)
        if (
            isinstance(function, Same)
            and function.values
            and all(isinstance(x, nn.Identity | Dropout) for x in function.values)
        ):
            return self.visit(node.args[0])
        match node.func, node.args:
            case ast.Name("effective_pattern"), [pattern, other] if self.scope.evaluate(other) is None:
                return self.visit(pattern)
            case ast.Attribute(ast.Name("F"), "scaled_dot_product_attention"), _:
                node.keywords = [x for x in node.keywords if self.scope.evaluate(x.value) is not None]
            case ast.Attribute(ast.Name("torch"), "cat"), [ast.ListComp() as parts, *_]:
                node.args[0] = self.visit(parts)
                if isinstance(node.args[0], ast.List) and len(node.args[0].elts) == 1:
                    return node.args[0].elts[0]
            case ast.Attribute(tensor, "to"), [kind]:
                own = (
                    isinstance(kind, ast.Attribute)
                    and kind.attr == "dtype"
                    and isinstance(self.scope.evaluate(tensor), Same)
                )
                if own or self.scope.evaluate(kind) is torch.float32:
                    return self.visit(tensor)
            case ast.Attribute(columns, "get"), [key] if isinstance(self.scope.evaluate(columns), frozenset):
                if self.scope.evaluate(key) not in self.scope.columns:
                    return ast.Constant(None)
                return ast.Subscript(self.visit(columns), key, ast.Load())
        return self.generic_visit(node)


def as_list(found: Any) -> list[Any]:
    """Return the result of a syntax tree visitor, which is a node, a list of nodes, or None, as a list."""
    return [] if found is None else found if isinstance(found, list) else [found]


def as_node(value: Any) -> ast.expr:
    """Return the syntax tree of an expression for a constant."""
    return ast.parse(repr(value), mode="eval").body


def stored_names(node: ast.AST) -> Counter[str]:
    """Return how often each name is assigned to in a function."""
    found = Counter[str]()
    for part in ast.walk(node):
        match part:
            case ast.Name(name, ast.Store()) | ast.FunctionDef(name) | ast.arg(name) if part is not node:
                found[name] += 1
    return found


def loaded_names(node: ast.AST) -> set[str]:
    """Return the names that are read in a function."""
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load)}


def simplify(node: ast.FunctionDef) -> None:
    """Simplify a function in place.

    Remove code after `return` and names that are never read, and inline names that are read once (see `inline_names`).
    """
    inline_names(node)
    read = loaded_names(node)
    for line in [x for x in ast.walk(node) if isinstance(x, ast.Assign)]:
        match line.targets, line.value:
            case [ast.Tuple(names)], ast.Tuple(parts) if len(names) == len(parts):
                pairs = [x for x in zip(names, parts, strict=True) if not isinstance(x[0], ast.Name) or x[0].id in read]
                if len(pairs) == 1 and len(names) > 1:
                    line.targets, line.value = [pairs[0][0]], pairs[0][1]
                elif pairs:
                    line.targets = [ast.Tuple([x for x, _ in pairs], ast.Store())]
                    line.value = ast.Tuple([x for _, x in pairs], ast.Load())
    for parent in ast.walk(node):
        for name in ("body", "orelse"):
            lines = getattr(parent, name, None)
            if not isinstance(lines, list):
                continue
            end = next((i for i, line in enumerate(lines) if isinstance(line, ast.Return | ast.Raise)), len(lines))
            kept = [
                line
                for line in lines[: end + 1]
                if not (
                    isinstance(line, ast.Assign)
                    and len(line.targets) == 1
                    and isinstance(line.targets[0], ast.Name)
                    and (line.targets[0].id not in read or ast.unparse(line.value) == line.targets[0].id)
                )
                and not (isinstance(line, ast.If) and not line.orelse and isinstance(line.body[0], ast.Pass))
            ]
            if len(kept) > 1:
                match kept[-2:]:
                    case [ast.Assign([ast.Name(name_)], value), ast.Return(ast.Name(returned))] if name_ == returned:
                        kept[-2:] = [ast.Return(value)]
            if name == "body" and lines and not kept:
                kept = [ast.Pass()]
            setattr(parent, name, kept)


def inline_names(node: ast.FunctionDef) -> None:
    """Replace each local name that is assigned once, from an attribute, and read once, with that attribute."""
    stored = stored_names(node)
    loads = Counter(x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load))
    known = {}
    for line in ast.walk(node):
        match line:
            case ast.Assign([ast.Name(name)], ast.Attribute() | ast.Subscript(ast.Attribute(), ast.Constant())) if (
                stored[name] == loads[name] == 1 and loaded_names(line.value) <= {"self", "packed", "context"}
            ):
                known[name] = line.value
    Renaming(known).visit(node)


class Renaming(ast.NodeTransformer):
    """A syntax tree transformer that replaces names, where they are read, with given expressions."""

    def __init__(self, known: Mapping[str, ast.expr]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> Any:
        """Replace a name that is read with the expression given for it, if there is one."""
        return self.known.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


def fold_function(node: ast.FunctionDef, scope: Scope) -> ast.FunctionDef:
    """Return a copy of a function with constant parameters and all expressions known in `scope` evaluated."""
    made = copy.deepcopy(node)
    if ast.get_docstring(made) is not None:
        made.body[0] = ast.Expr(ast.Constant(first_line(ast.get_docstring(made) or "")))
    constants, values = dict(scope.constants), dict[str, Any]()
    drop_parameters(made, constants)
    while True:
        before = ast.dump(made), len(constants), len(values)
        local = frozenset(stored_names(made)) - constants.keys()
        known = replace(scope, constants=constants, local=local, values=values)
        made.body = [done for line in made.body for done in as_list(Folding(known).visit(line))]
        simplify(made)
        counts = stored_names(made)
        for line in [x for x in ast.walk(made) if isinstance(x, ast.Assign) and len(x.targets) == 1]:
            target, value = line.targets[0], known.evaluate(line.value)
            if isinstance(target, ast.Name) and counts[target.id] == 1:
                if type(value) in (type(None), bool, tuple):
                    constants[target.id] = value
                elif isinstance(value, Same):
                    values[target.id] = value
        if (ast.dump(made), len(constants), len(values)) == before:
            break
    if (docstring := ast.get_docstring(made)) is not None:
        made.body[0] = ast.Expr(ast.Constant(without_clauses(docstring, set(stored_names(made)))))
    return ast.fix_missing_locations(made)


def without_clauses(docstring: str, names: Collection[str]) -> str:
    """Return a docstring without the clauses, after semicolons, that mention other parameters than those in `names`.

    >>> without_clauses("Return the states; `state` is a memory.", {"x"})
    'Return the states.'
    """
    first, *clauses = docstring.split("; ")
    kept = [clause for clause in clauses if set(re.findall(r"`(\w+)`", clause)) <= set(names)]
    return "; ".join([first, *kept]).rstrip(".") + "."


def first_line(docstring: str) -> str:
    """Return the first line of a docstring."""
    return docstring.strip().splitlines()[0]


def drop_parameters(node: ast.FunctionDef, names: Mapping[str, Any]) -> None:
    """Remove the parameters in `names` from the signature of a function."""
    arguments = node.args
    defaults = dict(zip([x.arg for x in arguments.args][::-1], arguments.defaults[::-1], strict=False))
    arguments.args = [x for x in arguments.args if x.arg not in names]
    arguments.defaults = [defaults[x.arg] for x in arguments.args if x.arg in defaults]
    kept = [pair for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if pair[0].arg not in names]
    arguments.kwonlyargs, arguments.kw_defaults = [pair[0] for pair in kept], [pair[1] for pair in kept]
