// MCP servers of the owner: the dialog that lists, adds and removes them.

import { asked, attempts, h, iconButton, setText } from './dom.js'
import { TEXTS } from './texts.js'

const { servers: texts } = TEXTS

/** Returns the button that opens the dialog, or null if the operator does not allow servers that owners add. */
export async function serversButton(client) {
  const { allowed, servers } = await client.request('GET', '/api/mcp/servers').catch(() => ({ allowed: false }))
  if (!allowed) return null
  const open = ({ target }) => {
    target.closest('dialog').close()
    showServers(client)
  }
  return h('button', { type: 'button', onclick: open }, texts.yours(servers.length))
}

async function showServers(client) {
  const { servers } = await client.request('GET', '/api/mcp/servers')
  const list = h('ul', { class: 'links' })
  const { trouble, attempt: tried } = attempts()
  const status = h('p', { class: 'hint', role: 'status' })
  const attempt = (work) => {
    setText(status, '')
    return tried(work)
  }
  const itemOf = ({ name, url, headers }) => {
    const remove = () =>
      attempt(async () => {
        await client.request('DELETE', `/api/mcp/servers/${name}`)
        item.remove()
      })
    const about = h('p', { class: 'hint' }, [url, ...headers].join(' · '))
    const words = h('div', {}, h('bdi', {}, name), about)
    const item = h('li', { class: 'row', 'data-server': name }, words, iconButton('bin', texts.remove(name), remove))
    return item
  }
  const input = (more) => h('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', ...more })
  const name = input({ maxlength: 32 })
  const url = input({ type: 'url', placeholder: 'https://' })
  const header = input({ type: 'password', autocomplete: 'new-password', placeholder: texts.headerHint })
  const add = (event) =>
    attempt(async () => {
      const headers = headersOf(header.value)
      event.target.disabled = true
      try {
        const path = `/api/mcp/servers/${encodeURIComponent(name.value)}`
        const added = await client.request('PUT', path, { url: url.value, headers })
        for (const item of [...list.children]) if (item.dataset.server === added.name) item.remove()
        list.append(itemOf({ name: added.name, url: url.value, headers: Object.keys(headers) }))
        const tools = added.tools.map((tool) => tool.name)
        setText(status, texts.added(added.name, tools))
        for (const field of [name, url, header]) field.value = ''
      } finally {
        event.target.disabled = false
      }
    })
  const withoutEnter = (event) => event.key === 'Enter' && event.preventDefault() // the dialog would close
  for (const field of [name, url, header]) field.addEventListener('keydown', withoutEnter)
  list.append(...servers.map(itemOf))
  await asked(
    texts.title,
    h('p', { class: 'hint' }, texts.about),
    list,
    h('label', {}, texts.name, name),
    h('label', {}, texts.url, url),
    h('label', {}, texts.header, header),
    status,
    trouble,
    h(
      'footer',
      {},
      h('button', { value: '' }, TEXTS.close),
      h('button', { type: 'button', class: 'primary', onclick: add }, texts.add),
    ),
  )
}

/** Parses one header, which is written as in a request. */
function headersOf(/** @type {string} */ written) {
  if (!written.trim()) return {}
  const [, name, value] = /^\s*([^:\s]+)\s*:\s*(.+?)\s*$/.exec(written) ?? []
  if (!name) throw new Error(texts.noHeader)
  return { [name]: value }
}
