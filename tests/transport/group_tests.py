"""Runs the tests of groups of processes, one after another."""


def run_all(tests):
    """`tests`: pairs of a name and what returns what is wrong, or nothing. 1 if anything is, else 0.

    Tests of lost ranks have timeouts of seconds, which a busy machine may not give a rank: what fails is run once more,
    but for the cases that every transport passes.
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
