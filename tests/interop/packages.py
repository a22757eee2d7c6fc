"""Python packages for the interop tests: those that the interpreter has, else a virtual environment with them."""
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import venv

SKIPPED = 77  # what ctest takes for "skipped"


def enter_environment(folder, packages, system_packages=False):
    """Runs the script again with the packages in an environment in `folder`, unless it has them; exit 77 where that
    fails.

    `system_packages`: the environment also sees what the interpreter has (a torch of gigabytes is not installed twice).
   
    """
    environment = os.path.join(folder, "venv")
    python = os.path.join(environment, "bin", "python")
    if os.path.realpath(sys.prefix) == os.path.realpath(environment):
        sys.dont_write_bytecode = False  # pip compiled nothing: what is imported is kept in the environment
        return
    if all(importlib.util.find_spec(name.split(".")[0]) and importlib.util.find_spec(name) for name in packages):
        return
    done = os.path.join(environment, "complete-" + "-".join(packages))
    if not os.path.exists(done):
        try:
            pip = [sys.executable, "-m", "pip", "--python", python] if pip_serves_others() else [python, "-m", "pip"]
            venv.create(environment, with_pip=not pip_serves_others(), clear=True, system_site_packages=system_packages)
            command = [*pip, "install", "--quiet", "--disable-pip-version-check", "--no-compile",
                       *map(distribution, packages)]
            subprocess.run(command, check=True, timeout=300)
            open(done, "w").close()
        except (OSError, subprocess.SubprocessError) as error:
            skip(f"{' and '.join(packages)} cannot be installed with pip here: {error}")
    os.execv(python, [python, *sys.argv])


def pip_serves_others():
    """Whether the interpreter's own pip installs into environments. To give each one its own takes 4 s."""
    try:
        return tuple(map(int, importlib.metadata.version("pip").split(".")[:2])) >= (22, 3)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False


def distribution(module):
    return {"google.protobuf": "protobuf", "mlflow": "mlflow-skinny"}.get(module, module)


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)
