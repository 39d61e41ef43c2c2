"""Messages and answers as they are stored with encryption, and as everybody sees them all the same."""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tests.support.http_client import Client, turn_url
from tests.support.http_server import serving
from turnstream.extensions.encryption.codec import labels_of
from turnstream.kit.sealing import new_master_key
from turnstream.scripted import message_of, text, tool_use
from turnstream.storage.contents import TEXT_MARK
from turnstream.storage.database import Database, Statement
from turnstream.tools.tool import ToolOutput, tool
from turnstream.tools.toolset import Toolset

pytestmark = pytest.mark.extensions("archives", "encryption", "inbox", "openapi", "search", "tool_results")

GET_BLOCKS_AS_STORED = Statement("SELECT index, type, blocks::text AS stored, text FROM blocks ORDER BY turn_id, index")
GET_INDEX = Statement("SELECT words::text AS words FROM search_texts")
