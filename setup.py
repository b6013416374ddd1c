"""Builds the compiled parts, or says what is missing, and makes the links of the README absolute.

Everything else is in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.editable_wheel import editable_wheel
from setuptools.errors import CCompilerError, CompileError, ExecError, PlatformError

HERE = Path(__file__).parent
REPOSITORY = "disposescope/disposescope"


class BuildExtensions(build_ext):
    """Build the extensions; a failure names what the build needs in its last line."""

    def build_extension(self, ext: Extension) -> None:
        """Build one extension."""
        if self.compiler.compiler_type == "msvc":
            # Those of pyproject.toml are for GCC and Clang.
            ext.extra_compile_args = ["/std:c11", "/O2"]
        try:
            super().build_extension(ext)
        except (CCompilerError, ExecError, PlatformError) as error:
            raise CompileError(
                "disposescope needs a C11 compiler and Python's headers to be installed from source: "
                f"building {ext.name} failed ({error})"
            ) from error


class EditableWheel(editable_wheel):
    """Install a checkout by a path that type checkers and editors follow, not by an import hook."""

    def finalize_options(self) -> None:
        """Take the checkout itself where its links to the rooms are links, else a tree of links.

        A checkout on Windows, or one that was unpacked from an archive, may hold plain files in
        their place. A module that is added to it is then found after the next installation only.
        """
        if (HERE / "disposescope" / "scopes" / "__init__.py").is_file():
            self.distribution.package_dir = {"": "."}
        elif self.mode is None:
            self.mode = "strict"
        super().finalize_options()


def long_description() -> str:
    """Return the README with links to the files of the release.

    A package index shows it without the other files, and long after these have changed.
    """
    text = (HERE / "README.md").read_text(encoding="utf-8")
    tag = "v" + tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    text = re.sub(r"(!\[[^\]]*\]\()(?!https:|#)", rf"\1https://raw.githubusercontent.com/{REPOSITORY}/{tag}/", text)
    return re.sub(r"(\[[^\]]*\]\()(?!https:|#)", rf"\1https://github.com/{REPOSITORY}/blob/{tag}/", text)


setup(
    cmdclass={"build_ext": BuildExtensions, "editable_wheel": EditableWheel},
    long_description=long_description(),
    long_description_content_type="text/markdown",
)
