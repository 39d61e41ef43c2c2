// Describes why an answer ended early: what happened, who must act, and what the person can do about it.

import { TEXTS } from './texts.js'

const { failures } = TEXTS

// Types of failures that only the operator can repair. Other types of failures may pass.
const OPERATOR = /auth|permission|denied|billing|quota|api_key|access|http_40[12]|model_not_available|not_found/i
const PERSON = /invalid_request|invalid_prompt|content_|context_length|too_long|too_large|max_tokens|budget|output/
const ENDS = ['forked', 'max_tokens', 'max_tool_rounds', 'max_calls']

/**
 * Returns the `text` of the failure, `bad` (whether it is a failure), and the `ways` out of it: `again`, `goOn`,
 * `anotherModel`. Returns null for a turn that ended normally.
 */
export function failureOf({ status, error, stop_reason, blocks }) {
  const goOn = blocks.some((block) => block.type === 'text' && block.text) ? ['goOn'] : []
  if (error) {
    const text = [failures.failed(sentence(error.message)), whoActs(error.type)].filter(Boolean).join(' ')
    return { text, bad: true, ways: ['again', ...goOn, 'anotherModel'] }
  }
  if (status === 'cancelled') return { text: failures.stopped, bad: false, ways: goOn }
  if (!ENDS.includes(stop_reason)) return null
  return { text: failures[stop_reason], bad: stop_reason !== 'forked', ways: stop_reason === 'forked' ? [] : goOn }
}

function whoActs(type) {
  if (type === 'internal_error') return failures.server
  if (OPERATOR.test(type)) return failures.operator
  return PERSON.test(type) ? failures.person : failures.passing
}

/** Makes a sentence of a message: some providers write no capital letter, or no full stop. */
function sentence(message) {
  const text = message.trim()
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? '' : '.'}`
}
