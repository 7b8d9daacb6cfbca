"""`rmqha generate`: files for the programs around a cluster: Prometheus, Grafana, systemd, Kubernetes, the shell."""
