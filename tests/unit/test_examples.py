"""A test runs or validates each code block of the documentation, or this module names the reason why none does."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.model_apis import APIS
from tests.support.pages import BLOCKS, ROOT, Block, blocks
from tests.support.programs import path_of
from turnstream.api.schemas.requests import ChatChanges
from turnstream.api.schemas.responses import ExcerptOut
from turnstream.api.schemas.tools import ActionsIn
from turnstream.config import Settings
from turnstream.extensions.browsers.schemas import BrowserTokenIn, BrowserTokenOut
from turnstream.extensions.openapi.schemas import Problem
from turnstream.extensions.why.calls import WhyOut
from turnstream.setup.policies import allowances
from turnstream_lab.comparison import Question, read_plan

QUICKSTART = "tests/acceptance/test_quickstart.py::test_the_commands_of_the_quickstart_work_as_written"
COMPARE = "tests/lab/test_replay_page.py::test_the_comparisons_of_the_page_print_its_output"
README = "tests/acceptance/test_quickstart.py::test_the_commands_of_the_readme_work_as_written"
REPLAY = "tests/lab/test_replay_page.py::test_the_commands_of_the_page_print_its_output"
OWN_TOOLS = "tests/acceptance/test_tools_page.py::test_tools_in_process_and_of_an_mcp_server_are_called_without_a_key"
MCP = "tests/extensions/mcp/test_declared.py::"
DECLARED = f"{MCP}test_the_examples_of_declarations_work"
HTTP_TOOL = "tests/extensions/http_tools/test_declared.py::test_the_example_of_the_page_prints_the_documented_text"
BESIDE = "tests/acceptance/test_embedding.py::test_beside_the_routes_of_a_host_all_addresses_have_the_prefix"
TUTORIAL = "tests/acceptance/test_tutorial.py::test_every_step_of_the_tutorial_prints_what_the_page_shows"
COOKBOOK = "tests/acceptance/test_cookbook.py::test_every_recipe_prints_what_the_page_shows"
TABLES = "tests/acceptance/test_embedding.py::test_beside_the_tables_of_a_host_it_has_a_schema_of_its_own"
LOGS = "tests/acceptance/test_embedding.py::test_its_lines_go_through_the_logging_of_the_host"
TOKEN = "tests/acceptance/test_pages.py::test_a_token_opens_the_stream_as_the_pages_say"
RUNBOOKS = "tests/acceptance/test_runbooks.py::test_the_commands_of_the_runbooks_work_as_written"
BACKUP = "tests/acceptance/test_pages.py::test_the_embedded_database_is_dumped_and_restored_as_the_page_says"
USAGE = "tests/extensions/usage/test_usage.py::test_operators_see_the_usage_of_all_owners"
OPERATORS = "tests/extensions/admin/test_admin.py::test_the_commands_list_replicas_and_drain_one"
DOCUMENTS = "tests/acceptance/test_pages.py::test_documents_are_imported_and_put_as_the_page_says"
AGENTS = "tests/extensions/agents/test_agents.py::test_the_agents_of_the_page_can_be_read"
TOOLS_PAGE = "tests/integration/test_tools_page.py::"
CLIENT_TOOL = f"{TOOLS_PAGE}test_the_example_of_a_client_tool_works"
APPROVAL = f"{TOOLS_PAGE}test_the_example_of_an_approval_with_another_input_works"
OPENAI_PAGE = "tests/extensions/openai_api/test_openai_page.py::"
AG_UI = "tests/node/test_ag_ui.py::test_the_examples_of_the_page_work_unchanged"
PACKAGES = "tests/node/test_packages.py::test_the_examples_of_the_page_fit_the_packages"
CONFORMANCE = "tests/conformance/test_conformance.py::"
PYTHON = "tests/client/test_python_client.py::test_the_client_installed_alone_talks_to_a_server_as_the_page_says"
HERE = "tests/unit/test_examples.py::"
GUARDRAILS = "tests/extensions/guardrails/test_guardrails.py::"
ANOTHER_API = "tests/integration/api/test_extensions.py::test_the_api_of_the_page_of_providers_answers"
MODELS = "tests/unit/test_models_page.py::"

# For the code blocks of one language below one heading: the test that checks them, or a reason why no test does. A test
# begins with `tests/`.
OF_THE_PAGE = "tests/integration/api/test_extensions.py::test_the_extension_of_the_page_counts"
BY_LINK = "tests/extensions/approval_links/test_approval_links.py::test_a_manager_approves_by_link"
LOGIN_ISSUERS = "tests/extensions/login/test_settings.py::test_the_issuers_of_the_page_can_be_read"
CHECKED = {
    ("docs/identity.md", "Login on the page", "toml"): LOGIN_ISSUERS,
    **{(block.page, block.heading, block.language): COOKBOOK for block in BLOCKS if block.page == "docs/cookbook.md"},
    ("README.md", "Try it", "sh"): README,
    ("README.md", "Try it", "text"): "the pieces of a text depend on its words; README's commands are run",
    ("docs/ai-sdk.md", "The AI SDK", "jsx"): "JSX needs a bundler; tests/node/page.mjs calls useChat in the same way",
    ("docs/ai-sdk.md", "Events and chunks", "jsx"): "JSX; tests/node/test_ai_sdk.py runs the functions that it names",
    ("docs/ai-sdk.md", "The same chats", "js"): f"{HERE}test_examples_in_javascript_are_valid",
    ("docs/ai-sdk.md", "The workflow transport", "js"): f"{HERE}test_examples_in_javascript_are_valid",
    ("docs/ai-sdk.md", "Events and chunks", "js"): f"{HERE}test_examples_in_javascript_are_valid",
    ("app/turnstream/web/packages/README.md", "The client", "ts"): PACKAGES,
    ("app/turnstream/web/packages/README.md", "React", "jsx"): PACKAGES,
    ("app/turnstream/web/packages/README.md", "The AI SDK", "jsx"): PACKAGES,
    ("docs/ag-ui.md", "AG-UI", "js"): AG_UI,
    ("docs/ag-ui.md", "Events", "js"): AG_UI,
    ("docs/programs.md", "TanStack AI", "js"): f"{HERE}test_examples_in_javascript_are_valid",
    ("docs/api.md", "Answers that may be old", "http"): "a request; tests/faults/test_standby.py sends such ones",
    ("app/turnstream/web/packages/assistant-ui.md", "The runtime", "jsx"): (
        "tests/browser/test_assistant_ui.py::test_tools_of_server_and_page_approvals_and_another_answer"
    ),
    (
        "app/turnstream/web/packages/assistant-ui.md",
        "The runtime",
        "js",
    ): f"{HERE}test_examples_in_javascript_are_valid",
    (
        "app/turnstream/web/packages/ai-elements.md",
        "With AI Elements",
        "sh",
    ): "fetches sources of others, which are in no package registry",
    ("app/turnstream/web/packages/ai-elements.md", "With AI Elements", "jsx"): (
        "tests/browser/test_ai_elements.py::test_tools_reasoning_and_approvals"
    ),
    ("app/turnstream/web/packages/copilotkit.md", "With CopilotKit", "jsx"): (
        "tests/browser/test_copilotkit.py::test_tools_of_server_and_page_and_approvals"
    ),
    ("app/turnstream/web/packages/copilotkit.md", "With its runtime in between", "js"): (
        "the runtime is 280 MB with what it needs; it was run by hand as it stands"
    ),
    ("docs/api.md", "Refusals", "json"): f"{HERE}test_answers_of_the_api_page_fit_their_schemas",
    ("docs/api.md", "Tokens for browsers", "http"): f"{HERE}test_the_exchange_of_the_page_is_accepted",
    ("docs/api.md", "Tokens for browsers", "json"): f"{HERE}test_the_exchange_of_the_page_is_accepted",
    ("docs/api.md", "Why", "json"): f"{HERE}test_answers_of_the_api_page_fit_their_schemas",
    ("docs/api.md", "Search", "json"): f"{HERE}test_answers_of_the_api_page_fit_their_schemas",
    ("docs/api.md", "The settings of a chat", "json"): f"{HERE}test_the_settings_of_the_page_are_accepted",
    ("docs/architecture.md", "Architecture", "text"): "a drawing",
    (
        "tests/bench/README.md",
        "Benchmarks",
        "sh",
    ): "takes minutes, and rewrites the page; the bench has tests of its own",
    ("app/turnstream_lab/README.md", "turnstream-lab", "sh"): (
        "tests/acceptance/test_package.py::test_the_lab_adds_its_commands_and_settings_to_the_server"
    ),
    ("app/turnstream_terminal/README.md", "turnstream-terminal", "sh"): (
        "tests/acceptance/test_pages.py::test_the_terminal_lists_chats_and_answers_as_its_page_says"
    ),
    (
        "app/turnstream_conformance/README.md",
        "Clients",
        "sh",
    ): f"{CONFORMANCE}test_a_client_with_the_usual_mistakes_is_found_out",
    ("app/turnstream_conformance/README.md", "Clients", "text"): (
        f"{CONFORMANCE}test_the_client_of_the_page_holds_every_duty_of_a_client"
    ),
    ("app/turnstream_conformance/README.md", "Agents of AG-UI", "sh"): (
        "tests/conformance/test_ag_ui.py::test_our_agent_holds_the_profile"
    ),
    ("app/turnstream_conformance/README.md", "Agents of AG-UI", "text"): (
        "tests/conformance/test_ag_ui.py::test_our_agent_holds_the_profile"
    ),
    (
        "app/turnstream_conformance/README.md",
        "Servers",
        "sh",
    ): f"{CONFORMANCE}test_our_server_keeps_all_promises_that_are_visible_from_outside",
    (
        "app/turnstream_conformance/README.md",
        "Servers",
        "text",
    ): f"{CONFORMANCE}test_our_server_keeps_all_promises_that_are_visible_from_outside",
    ("app/turnstream_conformance/README.md", "Proxies", "sh"): (
        "tests/faults/test_conformance_proxies.py::test_a_proxy_as_it_is_documented_holds_all_promises"
    ),
    ("docs/embedding.md", "A server of your own", "python"): (
        "tests/acceptance/test_embedding.py::test_a_program_of_its_own_serves_its_tools_and_ends_in_order"
    ),
    ("docs/embedding.md", "Beside your own routes", "python"): BESIDE,
    ("docs/embedding.md", "Beside your own routes", "sh"): BESIDE,
    ("docs/embedding.md", "Beside your own routes", "text"): BESIDE,
    ("docs/embedding.md", "Your own users", "python"): (
        "tests/acceptance/test_embedding.py::test_a_program_knows_who_asks_by_a_function_of_its_own"
    ),
    ("docs/embedding.md", "Beside your own tables", "sh"): TABLES,
    ("docs/embedding.md", "Beside your own tables", "text"): TABLES,
    ("docs/embedding.md", "Logs", "python"): LOGS,
    ("docs/embedding.md", "Logs", "text"): LOGS,
    ("docs/frontends.md", "turnstream.js", "js"): (
        "tests/browser/test_client_module.py::test_the_example_of_the_documentation_works_unchanged"
    ),
    ("docs/frontends.md", "Tokens", "js"): (
        "tests/extensions/browsers/test_browser_tokens.py::test_the_client_of_the_page_renews_its_token_in_mid_stream"
    ),
    ("docs/frontends.md", "EventSource", "js"): (
        "tests/unit/test_docs.py::test_the_example_with_event_source_listens_to_every_event"
    ),
    ("docs/frontends.md", "Other origins", "js"): (
        "tests/browser/test_other_origin.py::test_an_event_source_of_another_origin_continues_after_the_end_of_its_token"
    ),
    ("docs/extensions.md", "Writing one", "python"): OF_THE_PAGE,
    ("docs/extensions.md", "Writing one", "toml"): OF_THE_PAGE,
    ("docs/guardrails.md", "Guardrails", "toml"): f"{GUARDRAILS}test_the_file_of_the_page_can_be_read",
    ("docs/guardrails.md", "Checks", "python"): f"{GUARDRAILS}test_the_guard_of_the_page_hides_the_code_name",
    ("docs/guardrails.md", "A server that checks", "json"): (
        f"{GUARDRAILS}test_a_server_that_checks_gets_a_signed_body_as_on_the_page"
    ),
    ("docs/hooks.md", "Hooks", "python"): (
        "tests/integration/test_hooks.py::test_the_hooks_of_the_example_get_the_events_of_the_page"
    ),
    ("docs/hooks.md", "The webhook", "sh"): (
        "tests/acceptance/test_pages.py::test_the_secret_of_the_webhook_is_made_as_the_page_says"
    ),
    ("docs/hooks.md", "The webhook", "http"): "a request as it is on the wire; test_webhooks.py compares its members",
    ("docs/hooks.md", "A turn that waits", "json"): (
        "tests/extensions/webhooks/test_webhooks.py::test_the_webhook_of_a_turn_that_waits_is_as_on_the_page"
    ),
    ("docs/hooks.md", "Signature and delivery", "python"): (
        "tests/extensions/webhooks/test_webhooks.py::test_the_receiver_of_the_page_detects_forged_deliveries"
    ),
    ("docs/models.md", "The file of models", "toml"): f"{MODELS}test_the_file_of_models_can_be_read",
    ("docs/models.md", "Images and documents", "json"): f"{MODELS}test_the_bodies_are_accepted",
    ("docs/models.md", "Structured turns", "json"): f"{MODELS}test_the_bodies_are_accepted",
    ("docs/models.md", "Structured turns", "python"): f"{MODELS}test_validators_and_handlers_are_registered_by_name",
    ("docs/anthropic.md", "The Anthropic SDKs and Claude Code", "python"): (
        "tests/extensions/anthropic_api/test_anthropic_page.py::test_the_first_program_prints_an_answer"
    ),
    ("docs/anthropic.md", "The Anthropic SDKs and Claude Code", "sh"): (
        "tests/node/test_claude_code.py::test_claude_code_runs_its_tools_and_resumes_its_session"
    ),
    ("docs/openai.md", "Codex CLI", "toml"): (
        "tests/node/test_codex.py::test_codex_runs_its_tools_also_those_of_a_namespace_and_resumes_its_session"
    ),
    ("docs/openai.md", "Embeddings", "toml"): f"{OPENAI_PAGE}test_the_provider_of_embeddings_can_be_read",
    ("docs/openai.md", "The OpenAI SDKs and Codex", "python"): f"{OPENAI_PAGE}test_the_first_program_prints_an_answer",
    ("docs/openai.md", "From the Assistants API", "python"): f"{OPENAI_PAGE}test_a_thread_is_brought_over",
    ("docs/openai.md", "Tools", "json"): f"{OPENAI_PAGE}test_the_choice_of_tools_is_accepted",
    ("docs/admin.md", "The page for operators", "sh"): OPERATORS,
    ("docs/identity.md", "Who may use it", "sh"): TOKEN,
    ("docs/repair.md", "Doctor", "text"): (
        "tests/extensions/doctor/test_doctor.py::test_four_wrong_settings_are_four_lines_and_exit_1"
    ),
    ("docs/repair.md", "Why a turn does not move", "text"): (
        "tests/extensions/why/test_why.py::test_the_commands_list_open_turns_and_print_a_life"
    ),
    ("docs/identity.md", "Who may use it", "text"): TOKEN,
    ("docs/postgres.md", "Backup", "sh"): BACKUP,
    ("docs/limits.md", "What owners use", "sh"): USAGE,
    (
        "docs/limits.md",
        "Plans",
        "toml",
    ): "tests/extensions/plans/test_plans_file.py::test_the_file_is_that_of_the_page",
    ("docs/postgres.md", "A schema of its own", "sql"): (
        "tests/faults/test_poolers.py::test_a_schema_is_found_behind_a_pooler_if_its_user_has_the_search_path"
    ),
    (
        "docs/install.md",
        "Install and deploy",
        "sh",
    ): "needs `dist`; `make release` installs its wheels elsewhere and runs them",
    ("docs/install.md", "Deployment", "sh"): "needs a container engine",
    ("docs/protocol.md", "The request", "http"): "the forms of a request; test_openapi.py compares all paths",
    ("docs/protocol.md", "The wire format", "text"): "frames as they are on the wire, shortened",
    ("docs/protocol.md", "Duties of a client", "python"): (
        "tests/integration/test_promises.py::test_a_page_read_as_json_continues_as_a_stream_without_gaps"
    ),
    ("docs/protocol.md", "Calls that wait for a person", "http"): "the form of a request, with … in it",
    ("docs/protocol.md", "One stream for a chat", "http"): "the forms of a request",
    ("docs/protocol.md", "The feed of an owner", "http"): "the forms of a request",
    ("docs/providers.md", "Another API", "python"): ANOTHER_API,
    ("docs/providers.md", "Another API", "toml"): ANOTHER_API,
    ("docs/providers.md", "Claude at a cloud", "toml"): (
        "tests/extensions/anthropic_clouds/test_clouds.py::test_the_provider_of_the_page_can_be_read"
    ),
    ("docs/providers.md", "Gemini", "toml"): (
        "tests/extensions/gemini/test_gemini_sdk.py::test_the_provider_of_the_page_calls_vertex_with_tokens_that_are_refreshed"
    ),
    ("docs/providers.md", "Behind a gateway", "toml"): (
        "tests/extensions/gemini/test_gemini_sdk.py::test_the_providers_behind_a_gateway_can_be_read"
    ),
    ("docs/providers.md", "Parameters that the operator allows", "sh"): (
        f"{HERE}test_the_allowed_parameters_of_the_page_are_known"
    ),
    ("docs/providers.md", "The Responses API", "toml"): (
        "tests/extensions/openai/test_openai.py::test_the_providers_of_the_page_can_be_read"
    ),
    **{
        ("docs/quickstart.md", heading, "sh"): QUICKSTART
        for heading in (
            "Start",
            "Send a message and watch the answer",
            "Disconnect and resume",
            "Read it as JSON",
            "Continue, stop, regenerate",
            "Retry safely",
        )
    },
    **{
        ("app/turnstream_client/README.md", heading, "python"): PYTHON
        for heading in ("An answer", "Events", "Approvals")
    },
    ("app/turnstream_client/README.md", "The client in Python", "sh"): PYTHON,
    (
        "app/turnstream_terminal/README.md",
        "Approvals",
        "text",
    ): "a screen; tests/acceptance/test_terminal_approvals.py reads it",
    ("app/turnstream_lab/README.md", "The demo", "sh"): REPLAY,
    ("app/turnstream_lab/README.md", "The demo", "text"): REPLAY,
    ("app/turnstream_lab/README.md", "Record", "sh"): REPLAY,
    ("app/turnstream_lab/README.md", "Record", "text"): REPLAY,
    ("app/turnstream_lab/README.md", "Replay", "sh"): REPLAY,
    ("app/turnstream_lab/README.md", "Replay", "text"): REPLAY,
    ("app/turnstream_lab/README.md", "Compare", "sh"): COMPARE,
    ("app/turnstream_lab/README.md", "Compare", "text"): COMPARE,
    ("app/turnstream_lab/README.md", "Compare", "toml"): f"{HERE}test_the_plans_of_comparisons_can_be_read",
    ("app/turnstream_lab/README.md", "Judges", "python"): COMPARE,
    ("app/turnstream_lab/README.md", "Judges", "sh"): COMPARE,
    ("app/turnstream_lab/README.md", "Judges", "text"): COMPARE,
    ("app/turnstream_lab/README.md", "Judges", "toml"): f"{HERE}test_the_plans_of_comparisons_can_be_read",
    ("docs/states.md", "A turn", "mermaid"): (
        "tests/unit/test_docs.py::test_the_diagram_of_the_states_is_the_table_of_the_code"
    ),
    ("docs/tutorial.md", "1. The tools", "python"): TUTORIAL,
    **{
        ("docs/tutorial.md", heading, language): TUTORIAL
        for heading in ("1. The tools", "2. Tokens", "3. An approval", "4. Logins", "5. Two replicas")
        for language in ("sh", "text")
    },
    ("docs/tools.md", "A complete example", "python"): OWN_TOOLS,
    ("docs/tools.md", "A complete example", "sh"): OWN_TOOLS,
    ("docs/runbooks.md", "A turn does not move", "sh"): RUNBOOKS,
    ("docs/runbooks.md", "Jobs are overdue", "sh"): RUNBOOKS,
    ("docs/runbooks.md", "Schedules are paused", "sh"): RUNBOOKS,
    ("docs/schedules.md", "Triggers", "python"): (
        "tests/extensions/schedules/test_triggers.py::test_the_program_of_the_page_starts_a_turn"
    ),
    ("docs/schedules.md", "Schedules", "json"): (
        "tests/extensions/schedules/test_schedules.py::test_the_schedule_of_the_page_is_accepted"
    ),
    ("docs/runbooks.md", "A replica is gone", "sh"): RUNBOOKS,
    ("docs/runbooks.md", "A provider is down", "sh"): RUNBOOKS,
    ("docs/runbooks.md", "Postgres is away or slow", "sh"): RUNBOOKS,
    ("docs/runbooks.md", "An owner spends too much", "sh"): RUNBOOKS,
    ("docs/runbooks.md", "A secret has leaked", "sh"): RUNBOOKS,
    ("docs/runbooks.md", "Restore", "sh"): RUNBOOKS,
    ("docs/runbooks.md", "Upgrade and downgrade", "sh"): RUNBOOKS,
    ("docs/runbooks.md", "Webhooks fail", "sh"): RUNBOOKS,
    ("docs/runbooks.md", "Postgres is away or slow", "sql"): RUNBOOKS,
    ("docs/runbooks.md", "A transaction stays open", "sql"): RUNBOOKS,
    ("docs/runbooks.md", "The search is behind", "sql"): RUNBOOKS,
    ("docs/runbooks.md", "The disk of Postgres is full", "sql"): RUNBOOKS,
    ("docs/runbooks.md", "The standby is behind or away", "sh"): RUNBOOKS,
    ("docs/runbooks.md", "The standby is behind or away", "sql"): RUNBOOKS,
    ("docs/scaling.md", "Moving an owner", "sh"): (
        "tests/faults/test_cells.py::test_an_owner_moves_while_turns_run_and_messages_come"
    ),
    ("docs/tools.md", "A complete example", "text"): (
        "tests/unit/tools/test_docs_example.py::test_the_first_example_prints_the_documented_text"
    ),
    ("docs/background-tools.md", "Background tools", "python"): (
        f"{TOOLS_PAGE}test_the_background_tool_of_the_page_continues_from_its_checkpoint"
    ),
    ("docs/background-tools.md", "Calls that go on elsewhere", "python"): (
        f"{TOOLS_PAGE}test_the_tool_of_the_page_that_detaches_looks_again_with_its_handle"
    ),
    ("docs/agents.md", "Agents", "toml"): AGENTS,
    ("docs/tools.md", "A tool without the decorator", "text"): "a signature; mypy compares it with the protocol `Tool`",
    ("docs/tools.md", "Declaring tools", "python"): DECLARED,
    ("docs/tools.md", "Declaring tools", "toml"): DECLARED,
    ("docs/http-tools.md", "HTTP tools", "toml"): HTTP_TOOL,
    ("docs/http-tools.md", "HTTP tools", "text"): HTTP_TOOL,
    ("docs/mcp.md", "MCP servers", "python"): OWN_TOOLS,
    ("docs/mcp.md", "MCP servers", "toml"): f"{MCP}test_the_servers_of_the_page_can_be_declared",
    ("docs/mcp.md", "MCP servers", "sh"): OWN_TOOLS,
    ("docs/mcp.md", "MCP servers", "text"): OWN_TOOLS,
    ("docs/mcp.md", "Sign-ins of owners", "toml"): f"{MCP}test_the_calendar_of_the_page_wants_a_sign_in",
    ("docs/mcp.md", "Tools of each owner", "toml"): f"{MCP}test_the_calendar_of_the_page_has_tools_of_each_owner",
    ("docs/mcp.md", "Token exchange", "toml"): f"{MCP}test_the_calendar_of_the_page_exchanges_tokens",
    ("docs/mcp.md", "Questions of an MCP server", "json"): f"{HERE}test_the_answer_to_a_question_is_accepted",
    ("docs/tools-of-a-turn.md", "Client tools", "sh"): CLIENT_TOOL,
    (
        "docs/tools-of-a-turn.md",
        "The provider's own tools",
        "sh",
    ): f"{TOOLS_PAGE}test_the_example_of_a_provider_tool_works",
    (
        "docs/tools-of-a-turn.md",
        "Which tools a turn has",
        "sh",
    ): f"{TOOLS_PAGE}test_the_example_of_a_choice_of_tools_works",
    ("docs/approvals.md", "Approvals", "python"): (
        f"{TOOLS_PAGE}test_the_function_of_the_page_asks_for_large_amounts_only"
    ),
    ("docs/approvals.md", "Approvals", "toml"): APPROVAL,
    ("docs/approvals.md", "Approvals", "sh"): APPROVAL,
    ("docs/approvals.md", "Approval by others", "toml"): BY_LINK,
    ("docs/approvals.md", "Approval links", "sh"): BY_LINK,
    (
        "docs/approvals.md",
        "Approvals for a chat",
        "sh",
    ): f"{TOOLS_PAGE}test_the_example_of_an_approval_for_a_chat_works",
    ("docs/tool-policies.md", "Policies", "text"): (
        "tests/unit/tools/test_docs_policies.py::test_the_example_of_the_text_form_is_right"
    ),
    ("docs/api.md", "While the model talks", "sh"): f"{TOOLS_PAGE}test_the_example_of_a_busy_branch_works",
    ("docs/tools.md", "The document tools", "sh"): DOCUMENTS,
    ("docs/tools.md", "The document tools", "text"): DOCUMENTS,
}


def test_every_block_names_its_language() -> None:
    assert [(block.page, block.heading) for block in BLOCKS if not block.language] == []


def test_every_block_is_checked_by_a_test_or_has_a_reason_why_not() -> None:
    found = {block[:3] for block in BLOCKS}
    assert sorted(found - CHECKED.keys()) == []
    assert sorted(CHECKED.keys() - found) == []


@pytest.mark.parametrize("name", sorted({by for by in CHECKED.values() if by.startswith("tests/")}))
def test_a_test_that_checks_a_block_exists(name: str) -> None:
    file, _, test = name.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@cache
def _homes() -> Mapping[str, Sequence[str]]:
    return packages_distributions()


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"], ids=lambda block: block[1])
def test_examples_in_python_need_no_more_than_make_run_installs(block: Block) -> None:
    tree = ast.parse(block.code)
    imports = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    locked = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE))
    homes = _homes()
    # programs that use turnstream import these packages
    foreign = imports - sys.stdlib_module_names - {"turnstream", "fastapi", "turnstream_client"}
    names = {name: {home.lower().replace("_", "-") for home in homes.get(name, ())} for name in foreign}
    assert [name for name in foreign if not names[name] & locked] == []


@pytest.mark.needs("Node")
def test_examples_in_javascript_are_valid(tmp_path: Path) -> None:
    scripts = [block for block in BLOCKS if block.language == "js"]
    for number, block in enumerate(scripts):
        (tmp_path / f"example-{number}.mjs").write_text(block.code, encoding="utf-8")
    for file in sorted(tmp_path.iterdir()):
        checked = subprocess.run([path_of("Node"), "--check", file], capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_answers_of_the_api_page_fit_their_schemas() -> None:
    headings = ("Refusals", "Search", "Why")
    (refusal,), (excerpt,), (why,) = (blocks("docs/api.md", heading, "json") for heading in headings)
    assert WhyOut.model_validate_json(why).reasons
    assert Problem.model_validate_json(refusal).status == 422
    assert ExcerptOut.model_validate_json(excerpt.replace("01a2…", str(UUID(int=1)))).turn == UUID(int=1)


def test_the_plans_of_comparisons_can_be_read(tmp_path: Path) -> None:
    plans = []
    for heading in ("Compare", "Judges"):
        (tmp_path / "questions.toml").write_text(
            blocks("app/turnstream_lab/README.md", heading, "toml")[0], encoding="utf-8"
        )
        plans.append(read_plan(tmp_path / "questions.toml", (), ()))
    assert plans[0].sides["second"]["limits"] == {"max_rounds": 2}
    assert plans[1].questions == [Question("When is high water in Dover?", "14:07")]


def test_the_exchange_of_the_page_is_accepted() -> None:
    (request,), (answer,) = (blocks("docs/api.md", "Tokens for browsers", kind) for kind in ("http", "json"))
    sent = BrowserTokenIn.model_validate_json(request.partition("\n\n")[2])
    made = BrowserTokenOut.model_validate_json(answer)
    assert (made.scopes, made.chat, made.turn) == (sent.scopes, sent.chat, sent.turn)


def test_the_settings_of_the_page_are_accepted() -> None:
    (changes,) = blocks("docs/api.md", "The settings of a chat", "json")
    assert ChatChanges.model_validate_json(changes).settings is not None


def test_the_allowed_parameters_of_the_page_are_known(tmp_path: Path) -> None:
    (line,) = blocks("docs/providers.md", "Parameters that the operator allows", "sh")
    (tmp_path / ".env").write_text(line, encoding="utf-8")
    settings = Settings(_env_file=tmp_path / ".env")
    assert allowances(settings, APIS).params.values


def test_the_answer_to_a_question_is_accepted() -> None:
    (answer,) = blocks("docs/mcp.md", "Questions of an MCP server", "json")
    given = ActionsIn.model_validate({"actions": [json.loads(answer)]})
    assert given.actions[0].type == "answer"
