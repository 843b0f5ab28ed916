"""Print and parse Graphs and Programs; printing and parsing again gives an equal value."""

from __future__ import annotations

from compiler.ir.lexer import TextError
from compiler.ir.text_graph import parse_graph, print_graph
from compiler.ir.text_program import parse_program, print_instr, print_program

__all__ = ["TextError", "parse_graph", "parse_program", "print_graph", "print_instr", "print_program"]
