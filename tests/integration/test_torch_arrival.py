"""PyTorch may be imported before the library, after it, and inside of an open scope."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")


@pytest.mark.parametrize("nesting", ["", "with ds.dispose_scope(): "])
def test_inside_of_a_scope(nesting):
    program = f"""
        import disposescope as ds

        with ds.dispose_scope() as outer, ds.dispose_scope() as scope:
            {nesting}import torch
            tensor = torch.ones(3)
            assert tensor in scope
            scope.move_to_outer(tensor)
        assert ds.is_disposed(tensor)
        assert torch._C._len_torch_function_stack() == 0
    """
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(program)], check=True)


def test_inside_of_a_transform():
    program = """
        import torch
        import disposescope as ds

        gradient = torch.func.grad(lambda x: ds.pad_sequence([x, x]).sum())(torch.ones(3))
        assert gradient.tolist() == [2, 2, 2]
        with ds.dispose_scope() as scope:
            assert torch.ones(3) + 1 in scope
    """
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(program)], check=True)
