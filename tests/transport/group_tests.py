"""Runs the tests of groups of processes, one after another."""


def run_all(tests):
    """Runs `tests`, pairs of a name and a function that returns what is wrong, or nothing.

    Returns 1 if anything is wrong, otherwise 0. Tests of lost ranks have timeouts of seconds, and
    on a busy machine a rank may not run in that time. So a test that fails is run once more, except
    the cases that every transport passes.
    """
    status = 0
    for name, test in tests:
        print(name, flush=True)
        wrong = test()
        if wrong and not name.startswith("cases"):
            print(f"{name}: once more, for\n{wrong}", flush=True)
            wrong = test()
        if wrong:
            print(f"{name}: failed\n{wrong}", flush=True)
            status = 1
    return status
