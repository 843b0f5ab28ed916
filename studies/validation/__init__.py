"""Published measurements as data, and the page that holds our predictions against them."""

from studies.validation.report import SUITES, UNMAPPED, cells, claims, row_texts, write_validation

__all__ = ["SUITES", "UNMAPPED", "cells", "claims", "row_texts", "write_validation"]
