"""Rewrites that every importer shares: from ops spelled out to the ops that kernels are written for."""
