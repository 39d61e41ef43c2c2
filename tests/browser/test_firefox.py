"""The main tests of the page, run again in Debian's Firefox."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.browser import test_attachments, test_away, test_hostile, test_people_in_the_loop, test_talk
from tests.support.programs import path_of

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs("Firefox"), pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]

test_begin = test_talk.test_a_chat_exists_after_its_first_message
test_stream = test_talk.test_an_answer_is_watched_with_its_thoughts_and_its_tools_side_by_side
test_reload = test_talk.test_a_reload_in_the_middle_of_a_word_loses_and_repeats_nothing
test_two_tabs = test_talk.test_two_tabs_show_one_answer_and_follow_turns_of_each_other
test_stop = test_talk.test_stop_keeps_the_text_so_far
test_edit = test_talk.test_editing_and_asking_again_make_siblings_that_arrows_lead_to
test_list = test_talk.test_chats_are_searched_renamed_and_deleted_from_the_list
test_approval = test_people_in_the_loop.test_a_call_runs_when_it_is_allowed
test_denial = test_people_in_the_loop.test_a_denial_tells_the_model_why_and_closes_the_question_in_every_tab
test_away_in_order = test_away.test_messages_without_a_network_are_shown_as_unsent_and_sent_in_order_later
test_away_at_first = test_away.test_a_new_chat_begins_with_the_messages_sent_offline_also_after_a_reload
test_lost_answer = test_away.test_a_message_whose_answer_was_lost_arrives_once_also_from_another_visit_or_tab
test_files = test_attachments.test_a_message_that_waits_for_its_files_goes_to_the_chat_in_which_it_was_written
test_policy = test_hostile.test_no_output_of_a_model_runs_code_or_makes_an_unsafe_link


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """Replaces Chromium in this module."""
    program = tmp_path_factory.mktemp("firefox") / "firefox"
    relay = f'exec "{sys.executable}" -m tests.browser.firefox "{path_of("Firefox")}" "$@"'
    program.write_text(f'#!/bin/sh\ncd "{ROOT}"\n{relay}\n', encoding="utf-8")
    program.chmod(0o700)
    async with async_playwright() as playwright:
        browser = await playwright.firefox.launch(channel="moz-firefox", executable_path=program)
        yield browser
        await browser.close()
