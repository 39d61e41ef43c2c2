// The list of chats: newest first, searched, renamed, deleted.

import { confirmed, find, h, iconButton, setText } from './dom.js'

const PAGE = 100
const QUIET = 250 // milliseconds without a letter before the server is asked

export class Chats extends EventTarget {
  /** Fires `changed` when there is news of a title, `deleted` when the open chat is gone. */
  constructor(client) {
    super()
    this.client = client
    this.list = find('#chats')
    this.search = find('#search')
    this.chats = []
    this.next = null
    this.nextFound = null
    this.found = null
    this.open = null
    this.sought = null // the turn in which was said what somebody chose
    this.search.addEventListener('input', () => this.#search())
    this.search.addEventListener('keydown', (event) => event.key === 'Escape' && this.#clear(event))
    find('#more-chats').addEventListener('click', () => this.#readMore())
  }

  get(id) {
    return this.chats.find((chat) => chat.id === id) ?? this.found?.find((chat) => chat.id === id)
  }

  /** Looks what is new. The first page is enough: what changed is on top. */
  async refresh() {
    const { chats, next } = await this.#read()
    const older = next ? this.#olderThan(chats) : []
    this.chats = [...chats, ...older]
    if (!older.length) this.next = next
    this.found = this.found?.map((chat) => {
      const fresh = chats.find((one) => one.id === chat.id)
      return fresh ? { ...fresh, excerpt: chat.excerpt } : chat
    })
    this.#draw()
    this.dispatchEvent(new Event('changed'))
  }

  /** What is known of those behind the page. Nothing, where so much is new that chats between them may not be known. */
  #olderThan(page) {
    const last = page.at(-1)
    const place = this.chats.findIndex((chat) => chat.id === last.id && chat.updated_at === last.updated_at)
    const fresh = new Set(page.map((chat) => chat.id))
    return place < 0 ? [] : this.chats.slice(place).filter((chat) => !fresh.has(chat.id))
  }

  mark(id) {
    this.open = id
    this.#draw()
  }

  async #readMore() {
    const words = this.words
    const page = await this.#read(words, words ? this.nextFound : this.next)
    if (words !== this.words) return
    if (words) Object.assign(this, { found: [...this.found, ...page.chats], nextFound: page.next })
    else Object.assign(this, { chats: [...this.chats, ...page.chats], next: page.next })
    this.#draw()
  }

  #read(words, before, signal) {
    const asked = new URLSearchParams({ limit: PAGE, ...(words && { q: words }), ...(before && { before }) })
    return this.client.request('GET', `/api/chats?${asked}`, undefined, { signal })
  }

  get words() {
    return this.search.value.trim()
  }

  /** Asks the server once nothing was written for a moment; what was found before stays in sight until then. */
  #search() {
    clearTimeout(this.soon)
    this.asking?.abort()
    if (this.words) this.soon = setTimeout(() => this.#find(this.words), QUIET)
    else this.#show(null, null)
  }

  async #find(words) {
    this.asking = new AbortController()
    const { signal } = this.asking
    try {
      const page = await this.#read(words, null, signal)
      if (!signal.aborted) this.#show(page.chats, page.next)
    } catch (error) {
      const why = error instanceof TypeError ? 'the server cannot be reached' : error.message
      if (!signal.aborted) this.#show([], null, `Nothing was searched: ${why}`)
    }
  }

  #show(found, next, trouble) {
    Object.assign(this, { found, nextFound: next })
    setText(find('#no-chats'), trouble ?? 'No chats.')
    this.#draw()
  }

  #clear(event) {
    if (!this.search.value) return
    event.stopPropagation()
    this.search.value = ''
    this.#search()
  }

  #draw() {
    if (this.renaming) return
    const found = this.found ?? this.chats
    const shape = JSON.stringify([this.open, found.map((chat) => [chat.id, chat.title, ageOf(chat), chat.excerpt])])
    find('#no-chats').hidden = found.length > 0
    find('#more-chats').hidden = !(this.found ? this.nextFound : this.next)
    if (shape === this.shape) return
    this.shape = shape
    const focused = document.activeElement?.closest('[data-chat]')?.getAttribute('data-chat')
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
    const link = h('a', { 'aria-current': chat.id === this.open ? 'page' : null }, wordsOf(chat))
    const said = chat.excerpt?.turn
    link.href = said ? `#${chat.id}/${said}` : `#${chat.id}`
    link.addEventListener('click', () => (this.sought = said))
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
    this.chats = this.chats.filter((other) => other.id !== chat.id)
    this.found &&= this.found.filter((other) => other.id !== chat.id)
    this.#draw()
    if (chat.id === this.open) this.dispatchEvent(new Event('deleted'))
  }
}

export const titleOf = (chat) => chat?.title || 'Without a title'

/** The title, and where a search found something that was said. Since then the title may have changed. */
function wordsOf({ title, excerpt }) {
  const marked = excerpt?.pieces.map(({ text, found }) => (found ? h('mark', {}, text) : text))
  const inTitle = !excerpt?.turn && excerpt?.pieces.map(({ text }) => text).join('') === title
  return [
    h('span', { class: 'title', dir: 'auto' }, inTitle ? marked : titleOf({ title })),
    excerpt?.turn && h('span', { class: 'excerpt', dir: 'auto' }, marked),
  ]
}

function ageOf({ updated_at }) {
  const midnight = new Date().setHours(0, 0, 0, 0)
  const days = (midnight - Date.parse(updated_at)) / 86_400_000
  if (days < 0) return 'Today'
  if (days < 1) return 'Yesterday'
  return days < 7 ? 'This week' : 'Earlier'
}
