"""Real nodes as processes."""

import os

# As in conftest, for the scripts that drive nodes without pytest.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
