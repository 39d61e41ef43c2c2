from threading import get_ident

from turnstream.kit.offload import LARGE, offload


async def test_little_work_is_done_at_once_and_much_in_a_thread() -> None:
    assert await offload(LARGE - 1, get_ident) == get_ident()
    assert await offload(LARGE, get_ident) != get_ident()


async def test_the_result_is_that_of_the_work() -> None:
    assert await offload(LARGE, max, 1, 2) == await offload(0, max, 1, 2) == 2
