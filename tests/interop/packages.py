"""Python packages for the interop tests: those that the interpreter has, else a virtual environment with them."""
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import urllib.error
import urllib.request
import venv

SKIPPED = 77  # what ctest takes for "skipped"


def enter_environment(folder, packages, system_packages=False):
    """Runs the script again with the packages in an environment in `folder`, unless it has them. Where no registry of
    packages can be reached the test is skipped, exit 77; any other reason for not having them is a failure.

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
            registry = registry_address()
            if not answers(registry):
                skip(f"{' and '.join(packages)} come from a registry of packages, and {registry} does not answer")
            sys.exit(f"failed: {' and '.join(packages)} cannot be installed, though {registry} answers: {error}; "
                     "tools/setup.sh installs pip and venv")
    os.execv(python, [python, *sys.argv])


def registry_address():
    """Where pip looks for packages."""
    if os.environ.get("PIP_INDEX_URL"):
        return os.environ["PIP_INDEX_URL"]
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    configured = subprocess.run(command, capture_output=True, text=True)
    return configured.stdout.strip() or "https://pypi.org/simple"


def answers(address):
    """Whether a server is there; whatever it says is an answer."""
    try:
        urllib.request.urlopen(address, timeout=10).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True


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
