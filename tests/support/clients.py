"""The tests that show each ability with each client. `python -m tests.support.clients` writes the table to
`docs/dialects.md`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/dialects.md"

ABILITIES: Final = (
    *("streams", "tools of the server", "own tools", "structured", "history", "files", "reasoning", "errors", "resume"),
)
# The client, or its protocol, does not have the ability. The page has the reasons.
NONE = "—"

_OPENAI = "tests/extensions/openai_api/test_openai_"
_RESPONSES, _CHAT, _HISTORIES = (f"{_OPENAI}{part}.py" for part in ("responses", "chat", "histories"))
_AGENTS, _TOOLS, _FILES = (f"{_OPENAI}{part}.py" for part in ("agents", "tools", "files"))
_NODE_OPENAI, _NODE_AI_OPENAI = "tests/node/test_openai.py", "tests/node/test_ai_sdk_openai.py"
_MESSAGES, _NODE_MESSAGES = "tests/extensions/anthropic_api/test_messages.py", "tests/node/test_anthropic.py"
_CODEX, _CLAUDE = "tests/node/test_codex.py", "tests/node/test_claude_code.py"
_UI, _UI_FILES, _WORKFLOW = (f"tests/node/test_ai_sdk{part}.py" for part in ("", "_files", "_workflow"))
_AG_UI, _TANSTACK, _HOOKS = (f"tests/node/test_{part}.py" for part in ("ag_ui", "tanstack", "packages"))
_COPILOTKIT, _ASSISTANT_UI, _ELEMENTS, _CUT_HOOKS = (
    f"tests/browser/test_{part}.py" for part in ("copilotkit", "assistant_ui", "ai_elements", "packages")
)
_TALK, _ATTACHED, _LOOP, _RESTART = (
    f"tests/browser/test_{part}.py" for part in ("talk", "attachments", "people_in_the_loop", "restart")
)
_TERMINAL, _PYTHON = "tests/acceptance/test_terminal_client.py", "tests/client/test_python_client.py"
_FOLLOW, _HTTP = "tests/client/test_follow.py", "tests/client/test_http_client.py"
_PROGRAMS = "tests/extensions/test_requests_of_programs.py"
_RECORDED = f"{_PROGRAMS}::test_the_recorded_request_of_a_program_is_answered"
_CALLED = f"{_PROGRAMS}::test_a_recorded_request_with_tools_gets_their_calls"
_LOOPS = f"{_NODE_AI_OPENAI}::test_loops_of_tools_and_messages_continue_in_one_chat"
_EACH = f"{_NODE_AI_OPENAI}::test_outputs_files_tools_of_the_server_and_errors_are_what_the_sdk_knows"
_SESSION = f"{_CODEX}::test_codex_runs_its_tools_also_those_of_a_namespace_and_resumes_its_session"
_CODE = f"{_CLAUDE}::test_claude_code_runs_its_tools_and_resumes_its_session"
_CUTS = "test_an_answer_continues_after_a_reload_and_after_a_cut_and_"
_ANSWERS = f"{_NODE_OPENAI}::test_answers_are_returned_and_assembled_from_streams"
_CONVERSATION = f"{_UI}::test_a_conversation_with_tools_that_run_on_the_server"
_RUN = f"{_AG_UI}::test_a_run_with_reasoning_text_and_tools_of_the_server"
_FOLLOWED = f"{_MESSAGES}::test_a_message_continues_behind_its_history"
_ASKED = f"{_TERMINAL}::test_a_person_sees_the_answer_with_its_tools_folded_and_can_stop_the_next_one"
_WATCHED = f"{_TALK}::test_an_answer_is_watched_with_its_thoughts_and_its_tools_side_by_side"
_SIX_TOOLS = f"{_COPILOTKIT}::test_tools_of_server_and_page_and_approvals"
_THREE = f"{_ELEMENTS}::test_tools_reasoning_and_approvals"
_ASSISTED = f"{_ASSISTANT_UI}::test_tools_of_server_and_page_approvals_and_another_answer"
_AGENTS_REST = f"{_AGENTS}::test_a_run_has_tools_of_the_server_files_and_thoughts"
_SEEN = f"{_CODEX}::test_codex_sends_images_and_shows_thoughts_and_errors"
_IMAGE = f"{_CLAUDE}::test_claude_code_reads_an_image_and_shows_the_error_of_a_turn"
_CUT_STREAM = f"{_WORKFLOW}::test_an_answer_whose_stream_is_cut_is_whole"
_WHOLE = f"{_WORKFLOW}::test_a_tool_of_the_page_an_output_files_and_a_second_message"
_ASSISTED_FILES = f"{_ASSISTANT_UI}::test_a_file_reaches_the_model_and_the_error_of_a_turn_the_person"
_REST = f"{_ELEMENTS}::test_a_file_the_history_and_the_error_of_a_turn"
_SIX_FILES = f"{_COPILOTKIT}::test_a_file_reaches_the_model_and_the_error_of_a_turn_the_page"
_TAN_TOOLS = f"{_TANSTACK}::test_a_chat_with_tools_of_the_server"
_TAN_REST = f"{_TANSTACK}::test_a_tool_of_the_page_files_and_the_error_of_a_turn"
_RECIPES = "tests/acceptance/test_cookbook.py::test_every_recipe_prints_what_the_page_shows"
_INSTALLED = f"{_PYTHON}::test_the_client_installed_alone_talks_to_a_server_as_the_page_says"
_PAGE_FILES = f"{_ATTACHED}::test_files_are_pasted_dropped_or_chosen_seen_sent_and_kept_in_an_edit"

# The tests of each client, in the order of ABILITIES.
CLIENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "`openai` for Python, responses": (
        f"{_RESPONSES}::test_a_stream_is_assembled_by_the_sdk",
        f"{_TOOLS}::test_a_request_with_tools_or_a_format_of_its_own_has_tools_of_the_server_on_request",
        f"{_HISTORIES}::test_a_loop_of_tools_continues",
        f"{_RESPONSES}::test_structured_output_is_parsed_by_the_sdk",
        f"{_HISTORIES}::test_a_continued_conversation_is_one_chat",
        f"{_FILES}::test_a_file_is_input_of_a_response_and_of_a_completion",
        f"{_RESPONSES}::test_a_stream_is_assembled_by_the_sdk",
        f"{_RESPONSES}::test_errors_have_the_classes_of_the_sdk",
        (
            "tests/acceptance/test_openai.py"
            "::test_a_response_resumes_on_another_replica_after_the_one_that_wrote_it_was_killed"
        ),
    ),
    "the same, chat completions": (
        f"{_CHAT}::test_a_stream_has_text_thoughts_calls_and_usage",
        f"{_CHAT}::test_tools_of_the_server_run_there",
        f"{_HISTORIES}::test_a_loop_of_tools_continues",
        f"{_CHAT}::test_structured_output_is_parsed_by_the_sdk",
        f"{_HISTORIES}::test_a_continued_conversation_is_one_chat",
        f"{_FILES}::test_a_file_is_input_of_a_response_and_of_a_completion",
        f"{_CHAT}::test_a_stream_has_text_thoughts_calls_and_usage",
        f"{_CHAT}::test_a_model_that_fails_is_an_error_that_is_not_tried_again",
        NONE,
    ),
    "`openai` for JavaScript": (
        _ANSWERS,
        _ANSWERS,
        f"{_NODE_OPENAI}::test_functions_run_in_the_client_by_responses_and_by_chat_completions",
        f"{_NODE_OPENAI}::test_outputs_have_the_types_of_their_schemas",
        f"{_NODE_OPENAI}::test_a_thread_is_imported_and_continues",
        f"{_NODE_OPENAI}::test_files_are_uploaded_read_and_deleted",
        _ANSWERS,
        f"{_NODE_OPENAI}::test_errors_have_the_classes_of_the_package",
        f"{_NODE_OPENAI}::test_a_response_resumes_after_the_process_that_wrote_it_was_killed",
    ),
    "`openai-agents` for Python": (
        f"{_AGENTS}::test_a_run_is_streamed",
        _AGENTS_REST,
        f"{_AGENTS}::test_a_run_calls_tools_and_continues_with_its_history",
        f"{_AGENTS}::test_an_output_has_its_type_and_a_failure_its_class",
        f"{_OPENAI}conversations.py::test_a_session_of_the_agents_sdk_gives_the_model_the_results_of_its_calls",
        _AGENTS_REST,
        _AGENTS_REST,
        f"{_AGENTS}::test_an_output_has_its_type_and_a_failure_its_class",
        NONE,
    ),
    "`@ai-sdk/openai`, both APIs": (_LOOPS, _EACH, _LOOPS, _EACH, _LOOPS, _EACH, _EACH, _EACH, NONE),
    "Codex CLI": (_SESSION, NONE, _SESSION, NONE, _SESSION, _SEEN, _SEEN, _SEEN, NONE),
    "opencode, LiteLLM (recorded requests)": (_RECORDED, NONE, _CALLED, NONE, NONE, NONE, NONE, NONE, NONE),
    "`anthropic` for Python": (
        f"{_MESSAGES}::test_a_stream_is_accumulated_by_the_sdk",
        f"{_MESSAGES}::test_tools_of_the_server_are_offered_without_others_or_on_request",
        f"{_MESSAGES}::test_the_tool_runner_of_the_sdk_runs_its_tools",
        f"{_MESSAGES}::test_an_output_format_is_met",
        _FOLLOWED,
        f"{_MESSAGES}::test_images_and_documents_reach_the_model",
        f"{_MESSAGES}::test_thoughts_and_blocks_of_the_provider_come_back_byte_for_byte",
        f"{_MESSAGES}::test_failures_of_the_model_have_the_classes_of_the_sdk",
        (
            "tests/acceptance/test_anthropic.py"
            "::test_a_message_resumes_on_another_replica_after_the_one_that_wrote_it_was_killed"
        ),
    ),
    "`@anthropic-ai/sdk`": (
        f"{_NODE_MESSAGES}::test_messages_are_returned_and_assembled_from_streams",
        f"{_NODE_MESSAGES}::test_messages_are_returned_and_assembled_from_streams",
        f"{_NODE_MESSAGES}::test_tools_run_in_the_client",
        f"{_NODE_MESSAGES}::test_an_output_has_its_schema",
        f"{_NODE_MESSAGES}::test_tools_run_in_the_client",
        f"{_NODE_MESSAGES}::test_a_document_reaches_the_model",
        f"{_NODE_MESSAGES}::test_messages_are_returned_and_assembled_from_streams",
        f"{_NODE_MESSAGES}::test_errors_have_the_classes_of_the_package",
        f"{_NODE_MESSAGES}::test_a_message_resumes_after_the_process_that_wrote_it_was_killed",
    ),
    "Claude Code": (_CODE, NONE, _CODE, NONE, _CODE, _IMAGE, _CODE, _IMAGE, NONE),
    "`useChat`": (
        _CONVERSATION,
        _CONVERSATION,
        f"{_UI}::test_a_tool_that_the_page_runs",
        f"{_UI}::test_an_output_has_its_schema",
        f"{_UI}::test_the_model_gets_the_messages_that_a_page_begins_with",
        f"{_UI_FILES}::test_files_become_images_and_documents_and_are_sent_again_by_url",
        _CONVERSATION,
        f"{_UI}::test_the_error_of_a_turn_is_that_of_the_page",
        f"{_UI}::test_a_page_resumes_on_another_replica_after_the_one_that_wrote_was_killed",
    ),
    "the AI SDK's workflow transport": (
        *(_CUT_STREAM, _CUT_STREAM, _WHOLE, _WHOLE, _WHOLE, _WHOLE, _CUT_STREAM),
        f"{_WORKFLOW}::test_an_answer_that_fails_ends",
        _CUT_STREAM,
    ),
    "assistant-ui": (
        *(_ASSISTED, _ASSISTED, _ASSISTED, NONE),
        f"{_ASSISTANT_UI}::test_threads_are_the_chats_of_the_server",
        *(_ASSISTED_FILES, _ASSISTED, _ASSISTED_FILES),
        f"{_ASSISTANT_UI}::{_CUTS}cancel_stops_it",
    ),
    "AI Elements": (*(_THREE, _THREE, NONE, NONE, _REST, _REST, _THREE, _REST, f"{_ELEMENTS}::{_CUTS}stop_stops_it"),),
    "`HttpAgent` of AG-UI": (
        _RUN,
        _RUN,
        f"{_AG_UI}::test_a_tool_of_the_page_and_an_approval_in_the_same_turn",
        f"{_AG_UI}::test_an_output_has_its_schema_and_files_reach_the_model",
        f"{_AG_UI}::test_the_model_gets_the_messages_that_a_page_begins_with",
        f"{_AG_UI}::test_an_output_has_its_schema_and_files_reach_the_model",
        _RUN,
        f"{_AG_UI}::test_the_error_of_a_turn_is_that_of_the_run",
        f"{_AG_UI}::test_an_agent_connects_to_another_replica_after_the_one_that_wrote_was_killed",
    ),
    "CopilotKit": (
        *(_SIX_TOOLS, _SIX_TOOLS, _SIX_TOOLS, NONE, _SIX_TOOLS, _SIX_FILES, _SIX_TOOLS, _SIX_FILES),
        f"{_COPILOTKIT}::{_CUTS}stop_stops_it",
    ),
    "TanStack AI": (*(_TAN_TOOLS, _TAN_TOOLS, _TAN_REST, NONE, _TAN_TOOLS, _TAN_REST, _TAN_TOOLS, _TAN_REST, NONE),),
    "`turnstream-client` for Python": (
        *(_INSTALLED, _INSTALLED, _RECIPES, _RECIPES, _INSTALLED, _RECIPES),
        f"{_PYTHON}::test_thoughts_are_blocks_of_the_answer",
        f"{_HTTP}::test_a_refusal_is_a_sentence",
        f"{_FOLLOW}::test_a_lost_connection_resumes_after_the_last_complete_event",
    ),
    "`@turnstream/react`": (
        *(f"{_HOOKS}::test_hooks_show_the_state_of_the_server",) * 8,
        f"{_CUT_HOOKS}::test_hook_and_transport_come_back_after_a_cut",
    ),
    "the terminal": (
        _ASKED,
        _ASKED,
        "tests/terminal/test_approval_prompt.py::test_a_client_tool_gets_a_result_or_is_declined",
        "tests/terminal/test_turn_parts.py::test_a_verdict_shows_the_problem_of_a_rejected_output",
        f"{_TERMINAL}::test_a_question_can_be_piped_and_a_chat_continued_and_listed",
        f"{_TERMINAL}::test_a_message_is_edited_and_answered_again_with_files_and_branches_are_shown",
        (
            "tests/terminal/test_turn_parts.py"
            "::test_open_thinking_shows_its_last_words_and_closed_thinking_its_first_words_and_time"
        ),
        f"{_TERMINAL}::test_errors_are_sentences_with_a_remedy",
        f"{_TERMINAL}::test_a_person_opens_a_running_turn_while_the_server_is_killed",
    ),
    "the page": (
        _WATCHED,
        _WATCHED,
        f"{_LOOP}::test_the_page_runs_tools_of_its_own",
        (
            "tests/browser/test_notes.py"
            "::test_one_line_shows_shortened_results_and_the_verdict_on_an_output_with_the_facts_folded"
        ),
        f"{_TALK}::test_a_reload_in_the_middle_of_a_word_loses_and_repeats_nothing",
        _PAGE_FILES,
        _WATCHED,
        f"{_TALK}::test_a_message_that_was_refused_says_why_and_can_be_changed",
        f"{_RESTART}::test_an_answer_continues_after_the_server_was_killed_and_restarted",
    ),
}


def table_of_clients() -> str:
    head = [f"| client | {' | '.join(ABILITIES)} |", "|---" * (len(ABILITIES) + 1) + "|"]
    rows = [
        f"| {client} | {' | '.join(cell if cell == NONE else '●' for cell in cells)} |"
        for client, cells in CLIENTS.items()
    ]
    return "\n".join([*head, *rows]) + "\n"


def with_table(page: str) -> str:
    """Returns the page with the present table in place of the old table."""
    return re.sub(r"^\| client \| streams .*\n(\|.*\n)+", lambda _: table_of_clients(), page, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
