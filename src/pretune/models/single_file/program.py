"""The source of an exported file: the definitions that a network and its interface use, collected from pretune's own source."""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import groupby
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from pretune.models.model import Network
from pretune.models.single_file import runtime
from pretune.models.single_file.partial_evaluation import (
    NOT_PASSED,
    UNKNOWN,
    Scope,
    as_node,
    attribute,
    first_line,
    fold_function,
    simplify,
    stored_names,
)
from pretune.nn.attention.multi_head import AttentionContext
from pretune.nn.attention.patterns import Pattern
from pretune.nn.dropout import Dropout
from pretune.nn.feed_forward import ACTIVATIONS
from pretune.nn.linear import LayerNorm, Linear, OutputLinear, RMSNorm
from pretune.runtime.errors import PretuneError

NETWORK = "The network of the model: its backbone and its heads."
ADVICE = "export the model in another format, or use it with pretune"
MOST_RUNS = 4  # of equal layers that are written one after the other
CONSTANT = (type(None), bool, str, tuple)  # types of arguments for which a function is specialized
# Attributes of contexts and batches that are constant in exported files, with their values.
ABSENT = {"pattern": None} | {
    name: parameter.default
    for name, parameter in inspect.signature(AttentionContext).parameters.items()
    if name not in inspect.signature(runtime.AttentionContext).parameters
}


@cache
def module_tree(name: str) -> dict[str, ast.stmt]:
    """Return the top-level definitions and imports of a module by the names that they define."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(inspect.getsource(sys.modules[name])).body:
        match node:
            case ast.FunctionDef(name) | ast.ClassDef(name):
                found[name] = node
            case ast.Import(names) | ast.ImportFrom(_, names):
                found |= {(alias.asname or alias.name): node for alias in names}
            case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name)):
                found[name] = node
    return found


class Program:
    """The definitions of an exported file by name; each definition follows the other definitions that it needs."""

    def __init__(self, root: nn.Module, columns: Iterable[str], settings: Mapping[str, Any]) -> None:
        """Create a program without definitions, for the network `root`.

        `columns` has the names of the network's inputs per token besides ids, such as position, and `settings` has the
        constants of the exported file by name.
        """
        self.root, self.columns, self.settings = root, frozenset(columns), dict(settings)
        self.instances: dict[type, tuple[nn.Module, ...]] = {}
        for module in root.modules():
            self.instances[type(module)] = (*self.instances.get(type(module), ()), module)
        self.definitions: dict[str, ast.stmt] = {}
        self.imports: dict[str, str] = {}  # name → import statement
        self.variants: dict[tuple[Any, ...], str] = {}
        self.inlined: dict[str, str] = {}  # function that returns one of its parameters → that parameter
        self.methods: dict[type, dict[str, ast.FunctionDef]] = {}
        self.parameters: dict[type, list[str]] = {}  # of the constructor of each class
        self.read: set[str] = set()  # attributes that are read from other objects than `self`

    # -- names ------------------------------------------------------------------------------------------------------

    def require(self, name: str, module: ModuleType) -> ast.expr:
        """Add the definition of a global name of a Python module to the exported file.

        Return the expression that stands for the name in the exported file.
        """
        if name in self.settings:
            self.definitions.setdefault(name, assignment(name, as_node(self.settings[name])))
            return ast.Name(name, ast.Load())
        if not hasattr(module, name):
            assert hasattr(builtins, name), f"{module.__name__}: {name}"
            return ast.Name(name, ast.Load())
        value = getattr(module, name)
        if isinstance(value, Pattern):
            return as_node(reach_of(value))
        node = module_tree(module.__name__).get(name)
        if isinstance(node, ast.Import | ast.ImportFrom):
            source = getattr(node, "module", None) or ""
            if source.split(".")[0] != "pretune":
                (alias,) = (alias for alias in node.names if name == (alias.asname or alias.name))
                clause = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
                self.imports[name] = f"from {source} import {clause}" if source else f"import {clause}"
                return ast.Name(name, ast.Load())
            return self.require(next(a.name for a in node.names if name == (a.asname or a.name)), sys.modules[source])
        if hasattr(runtime, name) and module is not runtime and isinstance(value, type | FunctionType):
            return self.require(name, runtime)
        if isinstance(value, FunctionType) and isinstance(node, ast.FunctionDef):
            return ast.Name(self.function(value, {}), ast.Load())
        if isinstance(node, ast.ClassDef):
            if name not in self.definitions:
                self.plain_class(node, module)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and name not in self.definitions:
            made = copy.deepcopy(node)
            assert made.value is not None
            self.definitions[name] = assignment(name, self.link(made.value, Scope(vars(module)), module))
        return ast.Name(name, ast.Load())

    def scope(self, module: ModuleType, **known: Any) -> Scope:
        """Return the values that are known in a module's functions: globals, constant settings, and `known`."""
        return Scope({**vars(module), **self.settings}, columns=self.columns, absent=ABSENT, **known)

    def function(self, value: FunctionType, constants: Mapping[str, Any]) -> str:
        """Add a function, specialized for constant arguments, to the exported file; return its name in the file."""
        key = value.__module__, value.__name__, *sorted(constants.items(), key=str)
        if key in self.variants:
            return self.variants[key]
        name, taken = value.__name__, set(self.variants.values())
        self.variants[key] = (
            name if name not in taken else next(n for i in range(2, 99) if (n := f"{name}_{i}") not in taken)
        )
        module = sys.modules[value.__module__]
        node = module_tree(value.__module__)[name]
        assert isinstance(node, ast.FunctionDef)
        scope = self.scope(module, constants=dict(constants))
        made = fold_function(node, scope)
        made.name = self.variants[key]
        self.link(made, scope, module)
        simplify(made)
        match without_docstring(made):
            case [ast.Return(ast.Name(returned))]:
                self.inlined[made.name] = returned
        self.definitions[made.name] = made
        return made.name

    def plain_class(self, node: ast.ClassDef, module: ModuleType) -> None:
        """Add a class that is not a network module to the exported file, with all of its methods."""
        made = copy.deepcopy(node)
        made.decorator_list = [self.link(x, Scope(vars(module)), module) for x in made.decorator_list]
        made.bases = [self.link(x, Scope(vars(module)), module) for x in made.bases]
        self.definitions[node.name] = ast.Pass()  # it may refer to itself
        for number, line in enumerate(made.body):
            if isinstance(line, ast.FunctionDef):
                scope = self.scope(module)
                made.body[number] = self.link(fold_function(line, scope), scope, module)
            elif isinstance(line, ast.AnnAssign) and line.value is not None:
                line.value = self.link(line.value, Scope(vars(module)), module)
            elif isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant):
                line.value = ast.Constant(first_line(str(line.value.value)))
        del self.definitions[node.name]
        self.definitions[node.name] = made

    def link(self, node: Any, scope: Scope, module: ModuleType) -> Any:
        """Replace global names in a definition with those of the exported file; add their definitions to the file."""
        made = Linking(self, scope, module, frozenset(stored_names(node))).visit(node)
        return ast.fix_missing_locations(made)

    # -- the network --------------------------------------------------------------------------------------------------

    def add_network(self, user: type) -> None:
        """Add the network's module classes, the class `Network`, and the class for users, `user`, to the file."""
        self.definitions["Network"] = ast.Pass()
        self.require(user.__name__, sys.modules[user.__module__])
        del self.definitions["Network"]
        interface = dict(self.definitions)
        for kind in filter(is_brick, self.instances):
            self.method(kind, "forward")
        done = -1
        while done != (done := sum(map(len, self.methods.values()))):
            names = self.accessed()
            for kind in list(self.methods):
                for name in names & own_methods(kind):
                    self.method(kind, name)
        self.read = self.accessed()
        parts = {name: ast.unparse(self.construct(part)) for name, part in self.root.named_children()}
        lines = ["super().__init__()", *(f"self.{name} = {text}" for name, text in parts.items())]
        source = (
            f'class Network(nn.Module):\n    """{NETWORK}"""\n    def __init__(self):\n        '
            + "\n        ".join(lines)
        )
        network = {name: node for name, node in self.definitions.items() if name not in interface}
        self.definitions = network | {"Network": ast.parse(source).body[0]} | interface

    def method(self, kind: type, name: str) -> None:
        """Add the method `name` of a module class to the exported file, with the methods of `self` that it calls."""
        methods = self.methods.setdefault(kind, {})
        if name in methods or name not in own_methods(kind):
            return
        owner = next(base for base in kind.__mro__ if name in vars(base))
        module = sys.modules[owner.__module__]
        tree = module_tree(owner.__module__)[owner.__name__]
        assert isinstance(tree, ast.ClassDef)
        node = next(line for line in tree.body if isinstance(line, ast.FunctionDef) and line.name == name)
        parameters = {x.arg for x in (*node.args.args, *node.args.kwonlyargs)}
        constants = {key: value for key, value in NOT_PASSED.items() if key in parameters and name == "forward"}
        scope = self.scope(module, instances=self.instances[kind], constants=constants)
        made = fold_function(node, scope)
        made.decorator_list = [x for x in made.decorator_list if ast.unparse(x) in ("property", "staticmethod")]
        methods[name] = made
        self.link(made, scope, module)
        simplify(made)
        for found in ast.walk(made):
            if isinstance(found, ast.Attribute) and isinstance(found.value, ast.Name) and found.value.id == "self":
                self.method(kind, found.attr)

    def accessed(self) -> set[str]:
        """Return the names of all attributes that the exported code reads from objects other than `self`."""
        everything = [*self.definitions.values(), *(x for methods in self.methods.values() for x in methods.values())]
        return {
            x.attr
            for node in everything
            for x in ast.walk(node)
            if isinstance(x, ast.Attribute) and not (isinstance(x.value, ast.Name) and x.value.id in ("self", "torch", "F", "nn"))
        }  # fmt: skip

    def construct(self, module: Any) -> ast.expr:
        """Return an expression that constructs a module of the network; add its class to the exported file."""
        kind = type(module)
        if isinstance(module, nn.Identity | Dropout):
            return as_call("nn.Identity")
        if kind in (Linear, OutputLinear, nn.Linear):
            return as_call(
                "nn.Linear",
                module.in_features,
                module.out_features,
                **({} if module.bias is not None else {"bias": False}),
            )
        if kind in (LayerNorm, nn.LayerNorm):
            options = {"eps": module.eps} | ({} if module.bias is not None else {"bias": False})
            return as_call("nn.LayerNorm", *module.normalized_shape, **options)
        if kind in (RMSNorm, nn.RMSNorm):
            options = {"eps": module.eps} | ({} if module.weight is not None else {"elementwise_affine": False})
            return as_call("nn.RMSNorm", *module.normalized_shape, **options)
        if kind is nn.ModuleDict:
            return as_call(
                "nn.ModuleDict",
                ast.Dict([ast.Constant(x) for x in module], [self.construct(x) for x in module.values()]),
            )
        if kind is nn.ModuleList:
            return as_call("nn.ModuleList", several([self.construct(child) for child in module]))
        if isinstance(module, nn.Sequential):
            if kind is not nn.Sequential:
                self.module_class(kind, "nn.Sequential")
            return as_call("nn.Sequential" if kind is nn.Sequential else kind.__name__, *map(self.construct, module))
        if kind.__module__.startswith("torch.nn"):
            if any(True for _ in (*module.parameters(), *module.buffers())):
                raise PretuneError(
                    f"a module of the class {kind.__name__} cannot be written into a single file; {ADVICE}"
                )
            return as_node_from(f"nn.{module!r}")
        self.module_class(kind)
        values = {name: self.value(module, name) for name in self.parameters[kind]}
        return ast.Call(ast.Name(kind.__name__, ast.Load()), [], [ast.keyword(name, x) for name, x in values.items()])

    def module_class(self, kind: type, base: str = "nn.Module") -> None:
        """Write the class `kind`, derived from `base`, to the exported file: a constructor and the methods that are called."""
        if kind in self.parameters:
            return
        self.imports["nn"] = "from torch import nn"
        instances = self.instances[kind]
        body: list[ast.stmt] = []
        self.parameters[kind] = []
        if base == "nn.Module":
            body, self.parameters[kind] = self.constructor(kind, instances)
        merge_forwarding(self.methods.get(kind, {}))
        made = ast.parse(f"class {kind.__name__}({base}):\n    pass").body[0]
        assert isinstance(made, ast.ClassDef)
        docstring = [ast.Expr(ast.Constant(first_line(kind.__doc__)))] if kind.__doc__ else []
        made.body = [*docstring, *body, *self.methods.get(kind, {}).values()]
        self.definitions[kind.__name__] = ast.fix_missing_locations(made)

    def constructor(self, kind: type, instances: tuple[nn.Module, ...]) -> tuple[list[ast.stmt], list[str]]:
        """Return the `__init__` of a class for the exported file, in a list, and the names of its parameters.

        The parameters are the attributes that differ between the `instances` of the class in the network.
        """
        own = {
            x.attr
            for method in self.methods.get(kind, {}).values()
            for x in ast.walk(method)
            if isinstance(x, ast.Attribute) and isinstance(x.value, ast.Name) and x.value.id == "self"
        }
        read = self.read | own
        first = instances[0]
        tensors = [
            *first._parameters,
            *(name for name in first._buffers if name not in first._non_persistent_buffers_set),
        ]
        names = [name for name in vars(first) if name in read and not name.startswith("_") and name != "training"]
        names += [name for name in tensors if getattr(first, name) is not None or name in read]
        names += [
            name
            for name, child in first._modules.items()
            if name in own or (child is not None and (list(child.parameters()) or "children" in own))
        ]
        lines, parameters = ["super().__init__()"], []
        for name in dict.fromkeys(names):
            if not all(hasattr(instance, name) for instance in instances):
                raise PretuneError(
                    f"the model cannot be written into a single file, because only some layers of the class "
                    f"{kind.__name__} have the attribute {name!r}; {ADVICE}"
                )
            values = [self.value(instance, name) for instance in instances]
            if len(set(map(ast.unparse, values))) == 1:
                lines.append(f"self.{name} = {ast.unparse(values[0])}")
            else:
                parameters.append(name)
                lines.append(f"self.{name} = {name}")
        made = ast.parse(f"def __init__({', '.join(['self', *parameters])}):\n    " + "\n    ".join(lines)).body
        return list(made), parameters

    def value(self, module: nn.Module, name: str) -> ast.expr:
        """Return an expression for the value of a module's attribute: a constant, a tensor, a function, or a module."""
        value = getattr(module, name)
        if isinstance(value, nn.Module):
            return self.construct(value)
        if isinstance(value, torch.Tensor):
            self.imports["torch"] = "import torch"
            empty = f"torch.empty({', '.join(map(str, value.shape)) or '()'})"
            return as_node_from(f"nn.Parameter({empty})" if isinstance(value, nn.Parameter) else f"nn.Buffer({empty})")
        if isinstance(value, Pattern):
            return as_node(reach_of(value))
        if isinstance(value, torch.dtype):
            return as_node_from(str(value))
        if callable(value):
            return self.activation(value)
        if isinstance(value, range) and not value.start and value.step == 1:
            return as_call("range", len(value))
        if isinstance(value, list | tuple | range | dict | str | int | float | bool | type(None)):
            return as_node(value)
        raise PretuneError(
            f"{type(module).__name__}.{name} is a {type(value).__name__}, which cannot be written into a single file; "
            f"{ADVICE}"
        )

    def activation(self, value: Any) -> ast.expr:
        """Return the expression that defines an activation function in pretune's source."""
        module = sys.modules[type(ACTIVATIONS).__module__]
        (table,) = [x for x in ast.walk(module_tree(module.__name__)["ACTIVATIONS"]) if isinstance(x, ast.Dict)]
        for key, expression in zip(table.keys, table.values, strict=True):
            assert isinstance(key, ast.Constant)
            if ACTIVATIONS[str(key.value)] is value:
                return self.link(copy.deepcopy(expression), Scope(vars(module)), module)  # type: ignore[no-any-return]
        raise PretuneError(f"the activation function {value!r} cannot be written into a single file; {ADVICE}")


class Linking(ast.NodeTransformer):
    """A syntax tree transformer that adapts global names to the exported file, and specializes called functions."""

    def __init__(self, program: Program, scope: Scope, module: ModuleType, local: frozenset[str]) -> None:
        self.program, self.scope, self.module = program, scope, module
        self.local = local
        scope.local = scope.local | local

    def visit_Name(self, node: ast.Name) -> Any:
        """Replace a global name with the expression for it in the exported file."""
        if isinstance(node.ctx, ast.Store) or node.id in self.local or node.id == "self":
            return node
        return self.program.require(node.id, self.module)

    def visit_arg(self, node: ast.arg) -> Any:
        """Return a parameter unchanged; `drop_annotations` later removes annotations with unknown names."""
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """Replace the global names in the body, the defaults, and the decorators of a function."""
        node.decorator_list = [self.visit(x) for x in node.decorator_list]
        node.args.defaults = [self.visit(x) for x in node.args.defaults]
        node.body = [self.visit(x) for x in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Replace the global names in the value of an annotated assignment, but not in its annotation."""
        node.value = node.value and self.visit(node.value)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """Replace an attribute that is a plain function, such as an activation, with that function."""
        if isinstance(node.value, ast.Name) and node.value.id == "self" and self.scope.instances:
            value = attribute(self.scope.instances, node.attr)
            if (
                value is not UNKNOWN
                and callable(value)
                and not isinstance(value, type)
                and node.attr in vars(self.scope.instances[0])
            ):
                found = self.program.activation(value)
                if isinstance(found, ast.Name | ast.Attribute):
                    return found
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        """Replace a call of one of pretune's functions with a call of its version for these constant arguments."""
        if not isinstance(node.func, ast.Name) or node.func.id in self.local:
            return self.generic_visit(node)
        target = self.scope.evaluate(node.func)
        if (
            target is inspect.getattr_static(sys.modules["dataclasses"], "replace")
            and ast.unparse(node.args[0]) == "context"
        ):
            kept = [x for x in node.keywords if x.arg not in ABSENT]
            node.keywords = kept
            return self.generic_visit(node) if kept else self.visit(node.args[0])
        if not (isinstance(target, FunctionType | type) and target.__module__.startswith("pretune.")):
            return self.generic_visit(node)
        if any(isinstance(x, ast.Starred) for x in node.args) or any(x.arg is None for x in node.keywords):
            return self.generic_visit(node)
        replaced = getattr(runtime, target.__name__, target)
        if isinstance(target, type) and replaced is target:
            return self.generic_visit(node)
        return self.specialize(node, target, replaced)

    def specialize(self, node: ast.Call, target: Any, replaced: Any) -> Any:
        """Return a call of the called function's version that is specialized for the constant arguments of `node`."""
        original, signature = inspect.signature(target).parameters, inspect.signature(replaced).parameters
        given: dict[str, ast.expr] = dict(zip(original, node.args, strict=False))
        named = {str(x.arg): x.value for x in node.keywords}
        given = {name: x for name, x in {**given, **named}.items() if name in signature}
        constants: dict[str, Any] = {}
        for name, parameter in signature.items():
            value = self.scope.evaluate(given[name]) if name in given else parameter.default
            value = reach_of(value) if isinstance(value, Pattern) else value
            if type(value) in CONSTANT:
                constants[name] = value
        if isinstance(replaced, type):
            constants = {name: value for name, value in constants.items() if value is None}
            self.program.require(replaced.__name__, sys.modules[replaced.__module__])
            function = replaced.__name__
        else:
            function = self.program.function(replaced, constants)
        left = {key: self.visit(x) for key, x in given.items() if key not in constants}
        if function in self.program.inlined:
            return left[self.program.inlined[function]]
        return ast.Call(
            ast.Name(function, ast.Load()),
            [x for key, x in left.items() if key not in named],
            [ast.keyword(key, x) for key, x in left.items() if key in named],
        )


def is_brick(kind: type) -> bool:
    """Return whether the exported file defines this class of modules itself, rather than using a class of torch."""
    known = (Linear, OutputLinear, LayerNorm, RMSNorm, Dropout, Network)
    return kind not in known and not kind.__module__.startswith("torch.")


def own_methods(kind: type) -> set[str]:
    """Return the names of the methods and properties that a class has from pretune, not from torch."""
    return {
        name
        for base in kind.__mro__
        if base.__module__.startswith("pretune.")
        for name, value in vars(base).items()
        if isinstance(value, FunctionType | property | staticmethod) and name != "__init__"
    }


def reach_of(pattern: Pattern) -> tuple[int, int]:
    """Return how many tokens back and ahead an attention pattern reaches, -1 for no limit.

    Raise an error if the pattern is not a window around each token.
    """
    if pattern.reach is None:
        raise PretuneError(f"the attention pattern {pattern.name!r} cannot be written into a single file; {ADVICE}")
    return pattern.reach


def several(items: list[ast.expr]) -> ast.expr:
    """Return an expression for a list of `items`, in which runs of equal items are written as comprehensions."""
    texts = [ast.unparse(item) for item in items]
    runs = [(text, len(list(group))) for text, group in groupby(texts)]
    kinds = list(dict.fromkeys(texts))
    if len(runs) == 1 and len(items) > 1:
        return as_node_from(f"[{texts[0]} for _ in range({len(items)})]")
    if len(runs) > MOST_RUNS and len(kinds) < len(items):
        order = tuple(kinds.index(text) for text in texts)
        makers = ", ".join(f"lambda: {kind}" for kind in kinds)
        return as_node_from(f"[({makers})[kind]() for kind in {order}]")
    return as_node_from(f"[{', '.join(text if n == 1 else f'*[{text} for _ in range({n})]' for text, n in runs)}]")


def assignment(name: str, value: ast.expr) -> ast.stmt:
    """Return the syntax tree of the statement that assigns a value to a name."""
    return ast.fix_missing_locations(ast.Assign([ast.Name(name, ast.Store())], value))


def as_node_from(text: str) -> ast.expr:
    """Return the syntax tree of the expression in a text."""
    return ast.parse(text, mode="eval").body


def as_call(name: str, *arguments: Any, **options: Any) -> ast.Call:
    """Return the syntax tree of a call of the function `name`; arguments are expressions or constants."""
    values = [x if isinstance(x, ast.expr) else as_node(x) for x in arguments]
    return ast.Call(as_node_from(name), values, [ast.keyword(key, as_node(x)) for key, x in options.items()])


def merge_forwarding(methods: dict[str, ast.FunctionDef]) -> None:
    """If `forward` only calls another method with its own arguments, merge the two into `forward`."""
    if "forward" not in methods:
        return
    forward = methods["forward"]
    own = [x.arg for x in forward.args.args]
    match without_docstring(forward):
        case [ast.Return(ast.Call(ast.Attribute(ast.Name("self"), name), arguments, []))]:
            passed = ["self", *(x.id for x in arguments if isinstance(x, ast.Name))]
            if name in methods and passed == own == [x.arg for x in methods[name].args.args]:
                forward.body[-1:] = without_docstring(methods.pop(name))


def without_docstring(node: ast.FunctionDef) -> list[ast.stmt]:
    """Return the statements of a function after its docstring."""
    return node.body[1:] if ast.get_docstring(node) is not None else node.body
