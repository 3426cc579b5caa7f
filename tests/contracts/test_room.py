"""The policy room stands alone: it is imported where nothing but numpy and numba can be."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCKED = (
    "simpy", "torch", "kvikio", "pandas", "pyarrow", "matplotlib", "typer", "rich", "pydantic", "joblib", "yaml",
    "sim", "hw", "traces", "experiments", "reports",
)  # fmt: skip

CODE = """
import importlib, pkgutil, sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(f"{name} is blocked")

blocked = set(sys.argv[1:])
sys.meta_path.insert(0, Wall())
import kvcache
for module in pkgutil.walk_packages(kvcache.__path__, "kvcache."):
    importlib.import_module(module.name)
    print(module.name)
assert not blocked & {name.partition(".")[0] for name in sys.modules}
"""


def test_every_module_of_kvcache_imports_with_all_other_rooms_and_libraries_blocked() -> None:
    done = subprocess.run([sys.executable, "-c", CODE, *BLOCKED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert {"kvcache.engine", "kvcache.manager", "kvcache.tables"} <= set(done.stdout.split())


def test_the_wall_of_this_test_stops_what_it_should_stop() -> None:
    done = subprocess.run([sys.executable, "-c", CODE, "numba"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "numba is blocked" in done.stderr
