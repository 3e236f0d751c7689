"""The command line: `backstay`. Nothing heavy is imported here, so that `--help` is instant."""


def main() -> None:
    """Run the command that `sys.argv` names and end the process with its exit code."""
    from worker.cli.app import main as run  # noqa: PLC0415 - who only imports the name pays nothing

    run()
