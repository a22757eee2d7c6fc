"""Python packages that a test compares with, in a virtual environment of the build folder, made once."""
import os
import subprocess
import sys
import venv

SKIPPED = 77


def enter_environment(folder, packages):
    """Runs this script again with the packages, unless it has them. Where pip does not work the test is skipped."""
    environment = os.path.join(folder, "venv")
    python = os.path.join(environment, "bin", "python")
    if os.path.realpath(sys.prefix) == os.path.realpath(environment):
        return
    done = os.path.join(environment, "complete")
    if not os.path.exists(done):
        try:
            venv.create(environment, with_pip=True, clear=True)
            command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
            subprocess.run(command, check=True, timeout=300)
            open(done, "w").close()
        except (OSError, subprocess.SubprocessError) as error:
            print(f"skipped: {' and '.join(packages)} cannot be installed with pip here: {error}")
            sys.exit(SKIPPED)
    os.execv(python, [python, *sys.argv])
