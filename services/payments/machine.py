"""The states of a payment, and the ways between them."""

from ferryman.saga.machine import Machine, State

MACHINE = Machine(
    "payment",
    "payments.requests",
    "uuid",
    {
        "DEDUCTING": State("The wallet is asked for the amount.", ("SUCCEEDED", "FAILED", "FULFILLING", "CANCELLING")),
        "CANCELLING": State(
            "The wallet did not answer in time: it is asked to give back what it took, or to take nothing any more. "
            "Only its answer ends this.",
            ("FAILED", "STUCK"),
        ),
        "FULFILLING": State("The amount is taken; whoever fulfils is asked.", ("SUCCEEDED", "REFUNDING", "RECALLING")),
        "RECALLING": State(
            "Whoever fulfils did not answer in time: it is asked to stop, or to say that it has accepted. Only its "
            "answer ends this.",
            ("SUCCEEDED", "REFUNDING"),
        ),
        "REFUNDING": State(
            "It will not be fulfilled: the wallet is asked to give the amount back.", ("FAILED", "STUCK")
        ),
        "STUCK": State(
            "The wallet refuses to give the amount back: a person decides, unless the wallet says after all that "
            "nothing is taken any more.",
            ("FAILED",),
        ),
        "SUCCEEDED": State("It is done."),
        "FAILED": State("It is not done, and nothing is taken for it."),
    },
)
