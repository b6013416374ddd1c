"""Builds the compiled parts, and says what is missing where that fails; everything else is in pyproject.toml."""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, CompileError, ExecError, PlatformError


class BuildExtensions(build_ext):
    """Build the extensions; a failure names what the build needs in its last line."""

    def build_extension(self, ext: Extension) -> None:
        """Build one extension."""
        try:
            super().build_extension(ext)
        except (CCompilerError, ExecError, PlatformError) as error:
            raise CompileError(
                "disposescope needs a C11 compiler and Python's headers to be installed from source: "
                f"building {ext.name} failed ({error})"
            ) from error


setup(cmdclass={"build_ext": BuildExtensions})
