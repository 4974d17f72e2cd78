"""The Helm chart: its manifests as Helm renders them, and what Kubernetes and the engine accept."""
