"""Commands that ask or change a running cluster: topics, groups, controllers, explanations."""
