"""Find out which processor this machine has, and which of its instructions speed up int8 and bf16 arithmetic."""

from __future__ import annotations

import platform
import re
import subprocess
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")  # Linux
# Instructions by purpose: name → as Linux spells it in /proc/cpuinfo, and as macOS does in `sysctl -a`.
INT8 = {
    "AMX": ("amx_int8",),
    "AVX-512 VNNI": ("avx512_vnni",),
    "AVX VNNI": ("avx_vnni",),
    "I8MM": ("i8mm", "FEAT_I8MM"),
    "dot product": ("asimddp", "FEAT_DotProd"),
}
BF16 = {
    "AMX": ("amx_bf16",),
    "AVX-512 BF16": ("avx512_bf16",),
    "BF16": ("bf16", "FEAT_BF16"),
}


def int8_instructions() -> list[str]:
    """Return the names of the processor's instruction sets for int8 dot products, fastest first; [] if it has none."""
    return _found(INT8)


def bf16_instructions() -> list[str]:
    """Return the names of the processor's instruction sets for bf16 dot products, fastest first; [] if it has none."""
    return _found(BF16)


def cpu_model() -> str:
    """Return the name of the processor's model; if the system does not report it, the name of its architecture."""
    if named := re.search(r"^model name\s*:\s*(.+)$", _system_report(), re.MULTILINE):
        return named[1]
    if named := re.search(r"^machdep\.cpu\.brand_string: (.+)$", _system_report(), re.MULTILINE):
        return named[1]
    return platform.machine()


def _found(instructions: dict[str, tuple[str, ...]]) -> list[str]:
    report = _system_report()
    words = {*report.split(), *re.findall(r"(FEAT_\w+): 1$", report, re.MULTILINE)}
    return [name for name, spellings in instructions.items() if words & {*spellings}]


@cache
def _system_report() -> str:
    """Return the operating system's description of the processor, or "" if there is none."""
    try:
        if CPUINFO.is_file():
            return CPUINFO.read_text(encoding="utf-8", errors="replace")
        return subprocess.run(["sysctl", "-a"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
