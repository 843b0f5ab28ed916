"""Questions that a set of results can answer, by name: each gives a table and figures."""

from __future__ import annotations

from studies.base import Study
from studies.breakdown import Breakdown
from studies.heatmap import Heatmap
from studies.pareto import Pareto
from studies.roofline import Roofline
from studies.sensitivity import Sensitivity
from studies.timeline import Timeline

STUDIES: dict[str, Study] = {
    study.name: study for study in (Breakdown(), Roofline(), Pareto(), Heatmap(), Sensitivity(), Timeline())
}
