"""rmqha: broker-group high availability that speaks Apache RocketMQ 5's bytes."""

__version__ = "0.1.0"
