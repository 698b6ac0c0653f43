"""The public surface: sorted, complete, documented, and its examples true."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from types import FunctionType, ModuleType

import pytest

import roofline as rl

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(rl.__path__, "roofline.") if not module.name.endswith("__main__")
)
FRAMEWORKS = ("torch", "transformers", "onnx", "onnxscript", "jax")
NAMESPACES = [name for name in rl.__all__ if isinstance(getattr(rl, name), ModuleType)]
PUBLIC = {name: getattr(rl, name) for name in rl.__all__ if name not in NAMESPACES} | {
    f"{space}.{name}": getattr(getattr(rl, space), name)
    for space in NAMESPACES
    for name in getattr(rl, space).__all__
    if not isinstance(getattr(getattr(rl, space), name), ModuleType)
}
FUNCTIONS = [name for name, value in PUBLIC.items() if isinstance(value, FunctionType)]
#: Openings of a docstring that is no imperative.
NOUN = re.compile(r"(What|Whether|Those|Of|How|Which|Whose|Where|By|All|Everything|The|An?|One|Every) ")
#: Functions that refuse nothing.
SAFE = {"chips", "clusters", "models", "optimization.policies", *(f"passes.{name}" for name in
        ("clean", "drop_mask", "eliminate_dead", "fold_constants", "merge_equal", "unfuse"))}  # fmt: skip
#: Parameters that are quantities.
UNITS = {"reserve": "[byte]", "memory_limit": "[byte]", "latency_limit": "[s]", "size": "[byte]"}
CLASSES = [name for name, value in PUBLIC.items() if isinstance(value, type)]


def test_the_surface_is_sorted_complete_and_small() -> None:
    assert dir(rl) == rl.__all__ == sorted(rl.__all__)
    assert {"estimate", "best_batch", "check", "chip", "model", "workload", "count"} <= set(rl.__all__)
    assert len(rl.__all__) - len(NAMESPACES) <= 40
    assert set(NAMESPACES) == {
        "analysis", "charts", "codesign", "diagnosis", "errors", "fleet", "frontends", "measurement", "ops",
        "optimization", "passes",
        "quant", "serving", "tiling", "traces", "training",
    }  # fmt: skip
    assert rl.__version__.count(".") == 2


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_documented(name: str) -> None:
    assert inspect.getdoc(PUBLIC[name])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_says_what_it_does_takes_returns_and_raises(name: str) -> None:
    doc = inspect.getdoc(PUBLIC[name]) or ""
    parameters = inspect.signature(PUBLIC[name]).parameters
    assert not NOUN.match(doc), "the first line is an imperative"
    assert ">>>" in doc
    for section in ("Returns:", "Example:", *(["Args:"] if parameters else []), *([] if name in SAFE else ["Raises:"])):
        assert f"\n{section}\n" in doc, section
    for parameter in parameters:
        assert f"{parameter}:" in doc, parameter


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_quantity_has_its_unit(name: str) -> None:
    doc = inspect.getdoc(PUBLIC[name]) or ""
    for parameter in inspect.signature(PUBLIC[name]).parameters:
        if parameter in UNITS:
            entry = re.search(rf"\n    {parameter}: (.*?)(?=\n    \w+:|\n\n)", doc, re.DOTALL)
            assert entry, parameter
            assert UNITS[parameter] in entry[1] or "As for" in entry[1], parameter


@pytest.mark.parametrize("name", CLASSES)
def test_a_public_class_has_an_example_or_says_what_returns_it(name: str) -> None:
    doc = inspect.getdoc(PUBLIC[name]) or ""
    assert ">>>" in doc or ":func:" in doc or issubclass(PUBLIC[name], Exception)


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_method_is_documented(name: str) -> None:
    for key, member in vars(PUBLIC[name]).items():
        if not key.startswith("_") and isinstance(member, FunctionType | property):
            assert inspect.getdoc(member), key


def imported(name: str) -> ModuleType | None:
    """Return a module, ``None`` where it needs PyTorch and that is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None


def needs_missing_framework(test: doctest.DocTest) -> bool:
    """Tell whether an example imports a framework that is not installed."""
    imported = re.findall(r"^(?:import|from) (\w+)", "".join(example.source for example in test.examples), re.M)
    return any(name in FRAMEWORKS and importlib.util.find_spec(name) is None for name in imported)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_every_module_are_true(name: str) -> None:
    module = imported(name) or pytest.skip("needs PyTorch")
    assert module.__doc__, "a module says what it is for"
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(module):
        if not needs_missing_framework(test):
            runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_there_are_examples_to_run() -> None:
    finder = doctest.DocTestFinder()
    modules = filter(None, map(imported, MODULES))
    found = sum(bool(test.examples) for module in modules for test in finder.find(module))
    assert found >= 40


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No roofline attribute estimat"):
        _ = rl.estimat


def test_heavy_libraries_load_only_when_used() -> None:
    code = (
        "import sys, roofline as rl; rl.estimate(rl.model('gpt2', layers=1), 'h100-sxm', B=1, S=8).records(); "
        "heavy = {'pandas', 'matplotlib', 'typer', 'rich', 'torch'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_sketch_of_the_readme_works() -> None:
    est = rl.estimate(
        rl.model("llama-3-8b", phase="decode"), rl.chip("h100-sxm"), B=range(1, 129), C=2048, mode="graph"
    )
    assert est.time[31] > 0
    assert est.bound[31] in ("compute", "memory", "launch")
    assert est.memory.total[31] < est.capacity[31]
