"""Local steps in words: when the next meeting is, what it will carry, and what is under way."""

from __future__ import annotations

from fanin.host.torch.training.meetings.local_steps import TRAININGS, LocalSteps


def describe_training() -> str:
    """Every LocalSteps of this process in words: when it meets next, what that carries, and what is under way."""
    return "\n".join(sorted(_in_words(each) for each in TRAININGS)) or "no local steps in this process"


def _in_words(training: LocalSteps) -> str:
    plan, schedule, group = training.plan, training.schedule, training.group
    counts = [each.fragment.count for each in training.parts]
    lines = [
        f"local steps of {sum(counts):,} parameters over {group.size()} ranks (group {group.group_name!r}): step "
        f"{schedule.step}, {plan.period}, {plan.outer}, codec {plan.codec}"
    ]
    upcoming = training.next_meeting()
    if upcoming is not None:
        late = "" if plan.quorum is None else f", which closes with {plan.quorum} deltas"
        lines.append(
            f"  next: meeting {upcoming.number} in {upcoming.in_steps} steps, of fragment {upcoming.fragment + 1} of "
            f"{plan.fragments}, {counts[upcoming.fragment]:,} elements{late}"
        )
    lines += [
        f"  under way: meeting {each.number} of fragment {each.fragment + 1}, lands after step {each.due_step}"
        for each in schedule.under_way
    ]
    totals = training.totals
    lines.append(
        f"  so far: {totals.meetings} meetings, {totals.payload_bytes:,} bytes each way, waited {totals.waited_s:.2f} "
        f"s, left out of {totals.left_out}"
    )
    return "\n".join(lines)
