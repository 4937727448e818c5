"""Tasks with some of their examples or clients set apart."""

import dataclasses


def with_validation(task, *arguments, **options):
    data = task.data.with_validation(*arguments, **options)
    return task if data is task.data else dataclasses.replace(task, data=data)


def with_unseen(task, *arguments, **options):
    data = task.data.with_unseen(*arguments, **options)
    return task if data is task.data else dataclasses.replace(task, data=data)
