"""The judgement of a cluster's health from the reports of its nodes."""
