// The list of chats: newest first, searched, renamed, deleted.

import { confirmed, find, h, iconButton } from './dom.js'

const PAGE = 100

export class Chats extends EventTarget {
  /** Fires `changed` when there is news of a title, `deleted` when the open chat is gone. */
  constructor(client) {
    super()
    this.client = client
    this.list = find('#chats')
    this.search = find('#search')
    this.chats = []
    this.next = null
    this.open = null
    this.search.addEventListener('input', () => this.#search())
    find('#more-chats').addEventListener('click', () => this.#readMore())
  }

  get(id) {
    return this.chats.find((chat) => chat.id === id)
  }

  /** Looks what is new. The first page is enough: what changed is on top. */
  async refresh() {
    const { chats, next } = await this.client.request('GET', `/api/chats?limit=${PAGE}`)
    const fresh = new Set(chats.map((chat) => chat.id))
    const older = this.chats.length > PAGE ? this.chats.slice(PAGE).filter((chat) => !fresh.has(chat.id)) : []
    this.chats = [...chats, ...older]
    if (!older.length) this.next = next
    this.#draw()
    this.dispatchEvent(new Event('changed'))
  }

  mark(id) {
    this.open = id
    this.#draw()
  }

  async #readMore() {
    const page = await this.client.request('GET', `/api/chats?limit=${PAGE}&before=${this.next}`)
    this.chats = [...this.chats, ...page.chats]
    this.next = page.next
    this.#draw()
  }

  async #search() {
    this.#draw()
    while (this.search.value && this.next) await this.#readMore()
  }

  #draw() {
    if (this.renaming) return
    const words = this.search.value.toLowerCase().split(/\s+/)
    const found = this.chats.filter((chat) => words.every((word) => titleOf(chat).toLowerCase().includes(word)))
    const shape = JSON.stringify([this.open, found.map((chat) => [chat.id, chat.title, ageOf(chat)])])
    find('#no-chats').hidden = found.length > 0
    find('#more-chats').hidden = !this.next || Boolean(this.search.value)
    if (shape === this.shape) return
    this.shape = shape
    const focused = document.activeElement?.closest?.('[data-chat]')?.dataset.chat
    this.list.replaceChildren(
      ...Object.entries(Object.groupBy(found, ageOf)).map(([age, chats]) => this.#group(age, chats)),
    )
    if (focused) this.list.querySelector(`[data-chat="${focused}"] a`)?.focus()
  }

  #group(age, chats) {
    return h(
      'section',
      { 'aria-label': age },
      h('h2', {}, age),
      h(
        'ul',
        {},
        chats.map((chat) => this.#item(chat)),
      ),
    )
  }

  #item(chat) {
    const link = h(
      'a',
      { href: `#${chat.id}`, dir: 'auto', 'aria-current': chat.id === this.open ? 'page' : null },
      titleOf(chat),
    )
    const item = h('li', { 'data-chat': chat.id }, link)
    item.append(
      iconButton('edit', `Rename ${titleOf(chat)}`, () => this.#rename(item, chat)),
      iconButton('bin', `Delete ${titleOf(chat)}`, () => this.#delete(chat)),
    )
    return item
  }

  #rename(item, chat) {
    const field = h('input', { type: 'text', 'aria-label': 'Title', maxlength: 300 })
    field.value = titleOf(chat)
    const finish = async (title) => {
      if (this.renaming !== field) return
      this.renaming = null
      this.shape = null
      if (title && title !== chat.title)
        Object.assign(chat, await this.client.request('PATCH', `/api/chats/${chat.id}`, { title }))
      this.#draw()
      this.dispatchEvent(new Event('changed'))
      this.list.querySelector(`[data-chat="${chat.id}"] a`)?.focus()
    }
    field.addEventListener('keydown', (event) => {
      if (event.key === 'Enter') finish(field.value.trim())
      if (event.key === 'Escape') finish(null)
    })
    field.addEventListener('blur', () => finish(field.value.trim()))
    this.renaming = field
    item.replaceChildren(field)
    field.select()
  }

  async #delete(chat) {
    const sure = await confirmed(
      `Delete “${titleOf(chat)}”?`,
      'All of its turns are deleted with it, for good.',
      'Delete',
    )
    if (!sure) return
    await this.client.request('DELETE', `/api/chats/${chat.id}`)
    this.chats = this.chats.filter((other) => other !== chat)
    this.#draw()
    if (chat.id === this.open) this.dispatchEvent(new Event('deleted'))
  }
}

export const titleOf = (chat) => chat?.title || 'Without a title'

function ageOf({ updated_at }) {
  const midnight = new Date().setHours(0, 0, 0, 0)
  const days = (midnight - Date.parse(updated_at)) / 86_400_000
  if (days < 0) return 'Today'
  if (days < 1) return 'Yesterday'
  return days < 7 ? 'This week' : 'Earlier'
}
