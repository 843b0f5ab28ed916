"""Every rule of the program level can fail: compiled programs with one thing wrong, and who notices."""

from __future__ import annotations

import ast
import inspect
from functools import cache

import pytest
from broken import MUTATIONS, SEARCHED
from broken_forms import Broken, Mutation
from real_programs import Case, more, small
from sites import missed

from compiler.errors import VerifyError
from compiler.ir import races, rules, run_rules, verify_instr, verify_operand, verify_program
from compiler.ir.rules import RULES, RuleError

CHECKED = (verify_instr, verify_operand, verify_program, races)


def verdict(broken: Broken) -> VerifyError | None:
    """What the verifier says of a program: its rules, then those of the run."""
    program, arch, _ = broken
    try:
        verify_program.verify_program(program, arch)
        verify_program.check_run(program, arch)
    except VerifyError as error:
        return error
    return None


def cases() -> tuple[Case, ...]:
    return (*small(), *more())


@cache
def outcomes(mutation: Mutation) -> tuple[tuple[str, str, VerifyError | None], ...]:
    """(case, name to be found, error) of every program with the mutation."""
    return tuple(
        (case.name, broken[2], verdict(broken)) for case in cases() for broken in mutation.apply(case)
    )


def ids(mutations: tuple[Mutation, ...]) -> list[str]:
    return [f"{m.rule}: {m.what}" for m in mutations]


def test_the_programs_are_legal() -> None:
    for case in cases():
        assert verdict((case.program, case.arch, "")) is None, case.name


@pytest.mark.parametrize("mutation", MUTATIONS, ids=ids(MUTATIONS))
def test_the_rule_fails_in_every_program_and_names_the_place(mutation: Mutation) -> None:
    found = outcomes(mutation)
    assert found, "no program has a place for it"
    for case, name, error in found:
        assert isinstance(error, RuleError), (case, error)
        assert error.rule == mutation.rule, (case, str(error))
        assert name in str(error), (case, name, str(error))


@cache
def first_hit(mutation: Mutation, case: Case) -> RuleError | None:
    for broken in mutation.apply(case):
        error = verdict(broken)
        if isinstance(error, RuleError) and error.rule == mutation.rule:
            assert broken[2] in str(error), str(error)
            return error
    return None


@pytest.mark.parametrize("mutation", SEARCHED, ids=ids(SEARCHED))
def test_some_edit_of_the_kind_breaks_the_rule_in_every_program(mutation: Mutation) -> None:
    for case in small():
        assert first_hit(mutation, case) is not None, case.name


def test_every_rule_is_hit() -> None:
    """By what happened, not by what the tables say."""
    hit = {error.rule for m in MUTATIONS for _, _, error in outcomes(m) if isinstance(error, RuleError)}
    hit |= {error.rule for m in SEARCHED if (error := first_hit(m, small()[0])) is not None}
    assert hit == set(RULES)


def test_every_place_that_reports_a_rule_is_reached() -> None:
    """A rule may be checked in several places: a new one without a mutation fails here."""
    errors = [error for m in MUTATIONS for _, _, error in outcomes(m)]
    errors += [first_hit(m, small()[0]) for m in SEARCHED]
    for module in CHECKED:
        assert not missed(module, [error for error in errors if error]), module.__name__


def test_every_code_that_the_modules_name_is_a_rule_and_the_other_way_round() -> None:
    """No rule stands in the table that no code checks."""
    named = set()
    for module in (*CHECKED, run_rules):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Constant) and node.value in RULES:
                named.add(node.value)
            if isinstance(node, ast.JoinedStr) and ast.unparse(node).startswith("f'channel-{"):
                named |= {"channel-consumer", "channel-producer"}
    assert named == set(rules.RULES)
