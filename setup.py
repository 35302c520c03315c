"""Packages and data of the pip build; everything else is in pyproject.toml."""

from glob import glob
import os

from setuptools import find_packages, setup


def data_files() -> list[tuple[str, list[str]]]:
    """Return launch and configuration files, below share/chunkpilot as in the ROS build."""
    folders: dict[str, list[str]] = {}
    for path in glob('launch/**', recursive=True) + glob('config/**', recursive=True):
        if os.path.isfile(path):
            folder = os.path.join('share/chunkpilot', os.path.dirname(path))
            folders.setdefault(folder, []).append(path)
    return sorted(folders.items())


setup(
    package_dir={'': 'src'},
    packages=find_packages('src', include=('chunkpilot_core', 'chunkpilot_core.*')),
    package_data={'chunkpilot_core': ['py.typed', '**/*.urdf', '**/*.yaml', '**/*.html']},
    data_files=data_files(),
)
