from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pretune.runtime import cpu_features
from pretune.runtime.cpu_features import bf16_instructions, cpu_model, int8_instructions

X86 = "model name\t: Intel(R) Xeon(R) Platinum\nflags\t\t: fpu avx2 avx512f avx512_vnni amx_bf16 amx_int8\n"
OLD_X86 = "model name\t: An old one\nflags\t\t: fpu sse4_2 avx avx2\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp\n"


@pytest.fixture(autouse=True)
def _uncached() -> Iterator[None]:
    cpu_features._system_report.cache_clear()
    yield
    cpu_features._system_report.cache_clear()


@pytest.mark.parametrize(
    ("report", "int8", "bf16"),
    [(X86, ["AMX", "AVX-512 VNNI"], ["AMX"]), (OLD_X86, [], []), (ARM, ["dot product"], [])],
)
def test_instructions_are_those_that_linux_reports(
    report: str, int8: list[str], bf16: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(report)
    monkeypatch.setattr(cpu_features, "CPUINFO", tmp_path / "cpuinfo")
    assert int8_instructions() == int8 and bf16_instructions() == bf16
    assert cpu_model() in report or report == ARM


def test_instructions_are_those_that_macos_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = "machdep.cpu.brand_string: Apple M2\nhw.optional.arm.FEAT_I8MM: 1\nhw.optional.arm.FEAT_BF16: 0\n"

    class Answer:
        stdout = report

    monkeypatch.setattr(cpu_features, "CPUINFO", tmp_path / "none")
    monkeypatch.setattr(cpu_features.subprocess, "run", lambda *_, **__: Answer)
    assert int8_instructions() == ["I8MM"] and bf16_instructions() == [] and cpu_model() == "Apple M2"


def test_a_machine_without_a_report_has_no_known_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError("sysctl")

    monkeypatch.setattr(cpu_features, "CPUINFO", tmp_path / "none")
    monkeypatch.setattr(cpu_features.subprocess, "run", missing)
    assert int8_instructions() == [] and cpu_model()
