"""A machine as a picture and a table, in Markdown."""

from ferryman.saga.machine import Machine


def drawing(machine: Machine) -> str:
    """Mermaid's state diagram, and what each state means."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {machine.initial}"]
    lines += [f"    {old} --> {new}" for old, new in machine.transitions]
    lines += [f"    {each} --> [*]" for each in machine.terminals]
    rows = [
        f"| `{name}` | {state.text} | {', '.join(f'`{each}`' for each in state.to) or 'it is over'} |"
        for name, state in machine.states.items()
    ]
    return "\n".join([*lines, "```", "", "| state | it means | from there |", "|---|---|---|", *rows])
