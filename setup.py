"""The part of the build that pyproject.toml cannot say: the folder `schemas` goes into the wheel as `turnlog/schemas`.

In the checkout it stays at the top, because schemas are a product of their own and not only Python's.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SCHEMAS = Path("schemas")


class BuildWithSchemas(build_py):
    """An editable install reads the checkout's folder; only a real build copies it."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode and SCHEMAS.is_dir():
            shutil.copytree(SCHEMAS, Path(self.build_lib) / "turnlog" / "schemas", dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithSchemas})
