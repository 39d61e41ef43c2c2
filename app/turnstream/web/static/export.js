// A chat as a file: Markdown for people, JSON for programs.

import { titleOf } from './chats.js'
import { save } from './dom.js'
import { isFile, nameOf } from './files.js'
import { TEXTS } from './texts.js'

const { export: texts } = TEXTS

export async function exportChat(client, conversation, form) {
  const chat = await client.request('GET', `/api/chats/${conversation.id}`)
  const turns = await wholePath(client, chat.id, conversation.path.at(-1).id)
  const name =
    titleOf(chat)
      .replace(/[^\p{L}\p{N}]+/gu, '-')
      .replace(/^-|-$/g, '')
      .slice(0, 60) || 'chat'
  if (form === 'json') save(`${name}.json`, 'application/json', JSON.stringify({ chat, turns }, null, 2))
  else save(`${name}.md`, 'text/markdown', markdownOf(chat, turns))
}

async function wholePath(client, chat, leaf) {
  const turns = []
  while (leaf) {
    const page = await client.request('GET', `/api/chats/${chat}/turns?limit=500&leaf=${leaf}`)
    turns.unshift(...page.turns)
    leaf = page.next
  }
  return turns
}

export function markdownOf(chat, turns) {
  return `${[`# ${titleOf(chat)}`, ...turns.map(turnText)].join('\n\n')}\n`
}

function turnText({ role, blocks }) {
  const parts = blocks.map(blockText).filter(Boolean)
  return [role === 'user' ? texts.question : texts.answer, ...parts].join('\n\n')
}

function blockText(block) {
  const { type, name, text, is_error } = block
  if (type === 'text') return text
  if (isFile(block)) return `*${nameOf(block)}*`
  if (type === 'user_text') return `> **${texts.steer}** ${text.replaceAll('\n', '\n> ')}`
  if (type === 'tool_use') return `**${name}**\n\n${fenced(text || '{}', 'json')}`
  if (type === 'tool_result')
    return `${is_error ? texts.error : texts.result} **${name}**\n\n${fenced(resultText(block), '')}`
  if (type === 'report') return `${texts.result} **${block.data?.name}**\n\n${fenced(text, '')}`
  return ''
}

/** Returns the text of a result, with the names of its files. */
function resultText({ text, content = [] }) {
  const files = content.filter(isFile).map((part) => `[${nameOf({ ...part, data: part })}]`)
  return [text, ...files].filter(Boolean).join('\n')
}

function fenced(text, language) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length))
  const fence = '`'.repeat(longest + 1)
  return `${fence}${language}\n${text}\n${fence}`
}
