"""What runs beside a device, under every evaluator: a trusted parent, one disposable child per candidate."""
