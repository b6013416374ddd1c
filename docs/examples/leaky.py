"""Keeps batches in five typical wrong ways.

``leak-report run docs/examples/leaky.py`` names the line that made each batch, and what holds it.
"""

import gc

import disposescope as ds

HISTORY = []
HOOKS = {}
PREVIEWS = []


class Trainer:
    def __init__(self, batch):
        self.batch = batch
        self.on_step = self.step  # a bound method refers to its object: a cycle

    def step(self):
        return float(self.batch.mean())


def keep_in_a_list():
    for _ in range(3):
        with ds.dispose_scope("step") as step:
            batch = ds.ones((1000, 1000), dtype="float32")
            HISTORY.append(step.move_to_outer(batch))


def keep_in_a_closure():
    for number in range(3):
        with ds.dispose_scope("step") as step:
            batch = step.move_to_outer(ds.ones((500, 1000), dtype="float32"))
            HOOKS[number] = mean_of(batch)


def mean_of(batch):
    def report_mean():
        return float(batch.mean())

    return report_mean


def keep_in_a_cycle():
    gc.disable()  # as training loops do that cannot have a pause: from now on a cycle stays
    Trainer(ds.ones((400, 1000), dtype="float32")).step()


def keep_in_an_exception():
    global last_error
    try:
        fail_on_a_batch()
    except ValueError as error:
        last_error = error


def fail_on_a_batch():
    batch = ds.ones((300, 1000), dtype="float32")
    if float(batch.sum()) > 0:
        raise ValueError("a batch of ones")


def keep_a_view():
    PREVIEWS.append(ds.ones((200, 1000), dtype="float32").reshape(-1)[:10])


def train_properly():
    with ds.dispose_scope("epoch") as epoch:
        for _ in range(3):
            with ds.dispose_scope("step") as step:
                total = step.move_to_outer((ds.ones((100, 1000), dtype="float32") * 2).sum())
        epoch.dispose_everything_but(total)
        return float(total)


if __name__ == "__main__":
    keep_in_a_list()
    keep_in_a_closure()
    keep_in_a_cycle()
    keep_in_an_exception()
    keep_a_view()
    print(f"trained to {train_properly():,.0f}")
