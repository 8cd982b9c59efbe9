"""What pyproject.toml cannot say: a build's version, and its README as a package index shows it.

A build is called after its commit: 0.1.0+gCOMMIT.
"""

import re
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).resolve().parent
# A link or an image whose target is a file of the repository.
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)#]+)(#[^)]*)?\)")


def for_index(readme: str, source: str | None) -> str:
    """Return a README whose links work where no files lie beside it.

    They lead to `source`, the URL of a repository at GitHub or GitLab; without one they become
    text, with the name of the file in the source archive.
    """

    def link(found: re.Match[str]) -> str:
        image, text, path, anchor = found[1], found[2], found[3], found[4] or ""
        if source is not None:
            place = "raw" if image else "blob"
            return f"{image}[{text}]({source.rstrip('/')}/{place}/HEAD/{path}{anchor})"
        return text if text == path else f"{text} ({path})"

    return LINK.sub(link, readme)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))

    from hpcfl.system import revision

    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        version=revision.version_to_build(HERE),
        long_description=for_index(
            (HERE / "README.md").read_text(encoding="utf-8"), project.get("urls", {}).get("Source")
        ),
        long_description_content_type="text/markdown",
        # Not a module to import: hpcfl/crypto/native.py loads it, with any Python from 3.11 on.
        ext_modules=[
            Extension(
                "hpcfl.crypto._kernel",
                ["hpcfl/crypto/kernel.c"],
                # Products are rounded before they are added, as in NumPy. Nothing traps.
                extra_compile_args=[
                    *("-O3", "-funroll-loops", "-ffp-contract=off", "-fno-trapping-math")
                ],
                libraries=["m"],
                py_limited_api=True,
                optional=True,
            )
        ],
        options={"bdist_wheel": {"py_limited_api": "cp311"}},
    )
