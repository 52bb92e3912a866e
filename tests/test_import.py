import subprocess
import sys

# What `import mpsae` may add to what torch has imported; the first part of each name.
ALLOWED = {"mpsae"}


def test_importing_mpsae_adds_nothing_to_torch_but_itself():
    code = """
import sys, torch
before = set(sys.modules)
import mpsae
added = {name.split(".")[0] for name in set(sys.modules) - before if not name.startswith("torch")}
print(*sorted(added - set(sys.stdlib_module_names)))
"""
    added = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(added) == ALLOWED
