"""A deployed application: the archive of its files, which every node of a group gets and runs.

``archive``  packs the files of an application, and unpacks them.
``store``    keeps the archives that were deployed to a node in its data directory.
``loading``  loads the application that a node runs: the deployed one, or that of its file.
``requirements``  says what two nodes must have in common to run an application.
"""

from ha_engine.deploy.archive import Archive, pack
from ha_engine.deploy.loading import application_of, unpacked
from ha_engine.deploy.requirements import differences, requirements_of
from ha_engine.deploy.store import DeployedApplications

__all__ = [
    "Archive",
    "DeployedApplications",
    "application_of",
    "differences",
    "pack",
    "requirements_of",
    "unpacked",
]
