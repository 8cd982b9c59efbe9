"""The recipe of contrib/easybuild, read by EasyBuild."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from environments import make, run
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

# Prints what the modules that an easyconfig depends on have in them, by name.
RESOLVE = """
import json, sys
from pathlib import Path
from easybuild.tools.options import set_up_configuration

path, shipped, prefix = sys.argv[1:]
# --fetch: without a program for modules.
arguments = [f"--robot={shipped}", f"--prefix={prefix}", "--fetch"]
arguments.append("--allow-use-as-root-and-accept-consequences")
set_up_configuration(args=arguments, silent=True)

from easybuild.framework.easyconfig.easyconfig import process_easyconfig
from easybuild.framework.easyconfig.style import check_easyconfigs_style
from easybuild.tools.modules import NoModulesTool
from easybuild.tools.robot import resolve_dependencies

found = process_easyconfig(path)
held = {}
for one in resolve_dependencies(found, NoModulesTool(), retain_all_deps=True):
    held[one["ec"].name] = one["ec"].version
    for extension in one["ec"].get_ref("exts_list"):
        if isinstance(extension, (list, tuple)) and len(extension) > 1:
            held[extension[0]] = extension[1]
print(json.dumps({"held": held, "style": check_easyconfigs_style([path])}))
"""


def test_easybuild_finds_the_dependencies_of_its_recipe(tmp_path):
    programs = make(tmp_path / "venv", "easybuild", "pycodestyle")
    (recipe,) = (ROOT / "contrib" / "easybuild").glob("*.eb")
    shipped = tmp_path / "venv" / "easybuild" / "easyconfigs"
    told = run(
        *(programs / "python", "-c", RESOLVE, recipe, shipped, tmp_path / "prefix"),
        folder=tmp_path,
        path=programs,
    )
    found = json.loads(told.splitlines()[-1])

    assert found["style"] == 0, told
    assert found["held"]["Python"] in Requirement(f"python{PROJECT['requires-python']}").specifier
    version = ".".join(found["held"]["Python"].split(".")[:2])
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
    for requirement in map(Requirement, PROJECT["dependencies"]):
        held = found["held"][requirement.name]
        assert re.fullmatch(r"[\d.]+", held)
        assert held in requirement.specifier, requirement
