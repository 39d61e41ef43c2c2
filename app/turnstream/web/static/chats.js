// The list of chats, newest first. People search, rename and delete chats; the owner's feed keeps the list up to date.

import { confirmed, find, h, iconButton, setText } from './dom.js'
import { LIST } from './kept-files.js'
import { notifies } from './notifications.js'
import { shelf } from './session.js'
import { Store } from './store.js'
import { FeedSubscription } from './subscription.js'
import { TEXTS } from './texts.js'
import { hasEnded } from './turnstream.js'

const { chats: texts } = TEXTS

const PAGE = 100
const QUIET = 250 // milliseconds after the last keystroke before the search is sent
const MAX_NEWS = 500 // chats
const RETRY = 5_000 // milliseconds before the list is read again after a failure

export class Chats extends EventTarget {
  /**
   * Fires `changed` when titles or settings may have changed, `deleted` when the open chat was deleted here, `waiting`
   * when the calls that wait for a person may have changed, and `news` when a turn has ended or begun to wait. `kept`
   * is where this browser keeps the list, so that it can be shown while the server is away.
   */
  constructor(client, kept) {
    super()
    this.client = client
    this.kept = kept
    this.list = find('#chats')
    this.search = find('#search')
    this.chats = []
    this.next = null
    this.found = null
    this.nextFound = null
    this.open = null
    this.sought = null // the turn to which the chosen search result leads
    /** @type {Map<string, any>} chats that were opened and are not in the list */
    this.others = new Map()
    /** @type {any[]} chats of other owners of which the owner of this page is a member */
    this.shared = []
    /** @type {Map<string, Map<string, string>>} the status of each turn that is open, by chat and turn */
    this.running = new Map()
    /** @type {Map<string, number>} how many calls of a turn wait for a person, if any */
    this.waiting = new Map()
    /** @type {Map<string, Map<string, number>>} how many calls of each turn run in the background, by chat and turn */
    this.jobs = new Map()
    /**
     * For each chat, the last turn that has ended, and the state that the chat has until it is shown again. All
     * tabs share this.
     */
    this.news = new Store('news', MAX_NEWS)
    addEventListener('storage', () => this.#seen())
    document.addEventListener('visibilitychange', () => this.#seen())
    this.feed = new FeedSubscription(client, {
      stays: notifies,
      receive: (event) => this.#receive(event),
      failed: () => this.#loadLater(),
    })
    this.search.addEventListener('input', () => this.#search())
    this.search.addEventListener('keydown', (event) => event.key === 'Escape' && this.#clear(event))
    this.list.addEventListener('focusin', (event) => this.#stopAt(event.target.closest('[data-chat]')))
    this.list.addEventListener('keydown', (event) => this.#move(event))
    find('#more-chats').addEventListener('click', () => this.#readMore())
  }

  get(id) {
    const listed = this.chats.find((chat) => chat.id === id) ?? this.found?.find((chat) => chat.id === id)
    return listed ?? this.others.get(id) ?? this.shared.find((chat) => chat.id === id)
  }

  /** The role in a chat of another owner; undefined in a chat of one's own. */
  roleIn(id) {
    return this.shared.find((chat) => chat.id === id)?.role
  }

  /** Reads the chats of other owners, now and whenever the page is shown again: they are not in the feed. */
  async followShared() {
    this.followsShared = true
    document.addEventListener('visibilitychange', () => document.hidden || this.readShared())
    await this.readShared()
    this.dispatchEvent(new Event('waiting'))
  }

  async readShared() {
    if (!this.followsShared) return
    const { memberships } = await this.client.request('GET', '/api/memberships').catch(() => ({ memberships: null }))
    if (!memberships) return
    this.shared = memberships.map(({ chat, ...more }) => ({ id: chat, ...more }))
    this.#draw()
    this.dispatchEvent(new Event('changed'))
  }

  async #leave(chat) {
    if (!(await confirmed(texts.leaveQuestion(titleOf(chat)), texts.leaveNote, texts.leaveChat))) return
    await this.client.request('DELETE', `/api/memberships/${chat.id}`)
    this.shared = this.shared.filter(({ id }) => id !== chat.id)
    this.#draw()
    if (chat.id === this.open) this.dispatchEvent(new Event('deleted'))
  }

  /** Reads a chat that is older than those in the list. */
  async know(id) {
    if (!this.get(id)) this.others.set(id, await this.client.request('GET', `/api/chats/${id}`))
  }

  /** Reads the newest chats, and follows the feed from there. Tries again after a failure. */
  async load() {
    clearTimeout(this.retry)
    try {
      const { chats, next, cursor } = await this.#read()
      Object.assign(this, { chats, next })
      this.kept.keep(`${LIST} ${shelf().prefix}`, LIST, new Blob([JSON.stringify(chats)]))
      this.running.clear() // the feed begins with all turns that are open
      this.waiting.clear()
      this.jobs.clear()
      this.dispatchEvent(new Event('waiting'))
      this.feed.start(cursor)
      this.#draw()
      this.dispatchEvent(new Event('changed'))
    } catch {
      this.#loadLater()
      if (!this.chats.length) await this.#showKept()
    }
  }

  async #showKept() {
    const [kept] = await this.kept.of(LIST)
    if (!kept || this.chats.length) return
    this.chats = JSON.parse(await kept.file.text())
    this.#draw()
    this.dispatchEvent(new Event('changed'))
  }

  #loadLater() {
    clearTimeout(this.retry)
    this.retry = setTimeout(() => this.load(), RETRY)
  }

  #receive({ event, data }) {
    if (event === 'reset') return void this.load()
    if (event === 'chat') this.put(data)
    else if (event === 'chat_deleted') this.#drop(data.id)
    else if (event === 'turn') this.#markTurn(data)
    this.#draw()
    if (event === 'chat') this.dispatchEvent(new Event('changed'))
  }

  /** Replaces a chat with its current state on the server. */
  put(chat) {
    if (this.others.has(chat.id)) this.others.set(chat.id, chat)
    const last = this.chats.at(-1)
    const listed = this.chats.some(({ id }) => id === chat.id)
    if (listed || !this.next || chat.updated_at > last.updated_at) {
      this.chats = [chat, ...this.chats.filter(({ id }) => id !== chat.id)]
      this.chats.sort((a, b) => Date.parse(b.updated_at) - Date.parse(a.updated_at))
    }
    this.found = this.found?.map((one) => (one.id === chat.id ? { ...chat, excerpt: one.excerpt } : one))
  }

  #drop(id) {
    this.chats = this.chats.filter((chat) => chat.id !== id)
    this.found &&= this.found.filter((chat) => chat.id !== id)
    this.running.delete(id)
    this.jobs.delete(id)
    this.news.remove(id)
    this.dispatchEvent(new Event('waiting'))
  }

  #markTurn({ chat, turn, status, waiting, jobs = 0 }) {
    this.#countJobs(chat, turn, jobs)
    const turns = this.running.get(chat) ?? new Map()
    const state = waiting ? 'waiting' : status === 'waiting' ? 'running' : status // a turn that waits only for jobs runs
    const isNew = turns.get(turn) !== state
    const hasJustEnded = hasEnded({ status }) && (turns.has(turn) || !jobs) // each connection repeats ended turns with jobs
    if (hasEnded({ status })) turns.delete(turn)
    else turns.set(turn, state)
    this.running.set(chat, turns)
    if (isNew && (waiting || hasJustEnded)) this.#report(chat, turn, state)
    if ((this.waiting.get(turn) ?? 0) === waiting) return
    if (waiting) this.waiting.set(turn, waiting)
    else this.waiting.delete(turn)
    this.dispatchEvent(new Event('waiting'))
  }

  #countJobs(chat, turn, jobs) {
    const counts = this.jobs.get(chat) ?? new Map()
    if (jobs) this.jobs.set(chat, counts.set(turn, jobs))
    else counts.delete(turn)
  }

  #jobsOf(id) {
    return [...(this.jobs.get(id)?.values() ?? [])].reduce((sum, count) => sum + count, 0)
  }

  #report(chat, turn, state) {
    if (state !== 'waiting') {
      if (turn <= this.news.get(chat)?.turn) return // the feed repeats what has just happened; ids are in order of time
      this.news.put(chat, { turn, state: state === 'error' ? 'failed' : 'unread', at: Date.now() })
    }
    this.#seen()
    const title = titleOf(this.get(chat))
    this.dispatchEvent(new CustomEvent('news', { detail: { chat, title, turn, state } }))
  }

  /** Returns 'waiting' (for a person), 'running', or else the news since the chat was last shown, or ''. */
  #stateOf(id) {
    const states = [...(this.running.get(id)?.values() ?? [])]
    return states.includes('waiting') ? 'waiting' : states.length ? 'running' : (this.news.get(id)?.state ?? '')
  }

  mark(id) {
    this.open = id
    this.#seen()
  }

  /** Clears the news of the open chat, because the person sees it. */
  #seen() {
    const news = this.open && !document.hidden && this.news.get(this.open)
    if (news?.state) this.news.put(this.open, { ...news, state: '' })
    this.#draw()
  }

  async #readMore() {
    const { words } = this
    const page = await this.#read(words, words ? this.nextFound : this.next)
    if (words !== this.words) return
    if (words) Object.assign(this, { found: [...this.found, ...page.chats], nextFound: page.next })
    else {
      const known = new Set(this.chats.map(({ id }) => id)) // the feed may have moved a chat up while the page was read
      const older = page.chats.filter(({ id }) => !known.has(id))
      Object.assign(this, { chats: [...this.chats, ...older], next: page.next })
    }
    this.#draw()
  }

  #read(words, before, signal) {
    const query = new URLSearchParams({ limit: `${PAGE}`, ...(words && { q: words }), ...(before && { before }) })
    return this.client.request('GET', `/api/chats?${query}`, undefined, { signal })
  }

  get words() {
    return this.search.value.trim()
  }

  /** Searches when nothing was typed for a moment. The former results stay visible until the server answers. */
  #search() {
    clearTimeout(this.soon)
    this.searching?.abort()
    if (this.words) this.soon = setTimeout(() => this.#find(this.words), QUIET)
    else this.#show(null, null)
  }

  async #find(words) {
    this.searching = new AbortController()
    const { signal } = this.searching
    try {
      const page = await this.#read(words, null, signal)
      if (!signal.aborted) this.#show(page.chats, page.next)
    } catch (error) {
      const reason = error instanceof TypeError ? texts.away : error.message
      if (!signal.aborted) this.#show([], null, texts.notSearched(reason))
    }
  }

  #show(found, next, trouble) {
    Object.assign(this, { found, nextFound: next })
    setText(find('#no-chats'), trouble ?? texts.none)
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
    const shown = this.found ?? this.chats
    const items = shown.map((chat) => [
      chat.id,
      chat.title,
      ageOf(chat),
      chat.excerpt,
      this.#stateOf(chat.id),
      this.#jobsOf(chat.id),
    ])
    const shared = this.found ? [] : this.shared
    const shape = JSON.stringify([this.open, items, shared])
    find('#no-chats').hidden = shown.length + shared.length > 0
    find('#more-chats').hidden = !(this.found ? this.nextFound : this.next)
    if (shape === this.shape) return
    this.shape = shape
    const focused = document.activeElement?.closest('[data-chat]')?.getAttribute('data-chat')
    const groups = Object.entries(Object.groupBy(shown, ageOf))
    const own = groups.map(([age, chats]) => this.#group(age, chats))
    const sharedItems = shared.map((chat) => this.#sharedItem(chat))
    const ofOthers = groupOf(texts.shared, sharedItems)
    this.list.replaceChildren(...own, ...(shared.length ? [ofOthers] : []))
    const itemOf = (id) => this.list.querySelector(`[data-chat="${id}"]`)
    this.#stopAt(itemOf(focused) ?? itemOf(this.open) ?? this.list.querySelector('[data-chat]'))
    if (focused) itemOf(focused)?.querySelector('a').focus()
  }

  /** Makes one chat reachable with Tab, not all of them: arrows lead to the others. */
  #stopAt(item) {
    for (const part of this.list.querySelectorAll('a, button')) part.tabIndex = item?.contains(part) ? 0 : -1
  }

  #move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key]
    if (!step || this.renaming) return
    event.preventDefault()
    const items = [...this.list.querySelectorAll('[data-chat]')]
    items[items.indexOf(event.target.closest('[data-chat]')) + step]?.querySelector('a').focus()
  }

  #group(age, chats) {
    return groupOf(
      age,
      chats.map((chat) => this.#item(chat)),
    )
  }

  #sharedItem(chat) {
    const owner = h('span', { class: 'owner', dir: 'auto' }, texts.owner(chat.owner))
    const link = h(
      'a',
      { href: `#${chat.id}`, 'aria-current': chat.id === this.open ? 'page' : null },
      labelOf(chat),
      owner,
    )
    const leaving = iconButton('cross', texts.leave(titleOf(chat)), () => this.#leave(chat))
    return h('li', { 'data-chat': chat.id }, link, leaving)
  }

  #item(chat) {
    const state = this.#stateOf(chat.id)
    const mark = state && h('span', { class: `state ${state}`, role: 'img', 'aria-label': texts.states[state] })
    const link = h('a', { 'aria-current': chat.id === this.open ? 'page' : null }, labelOf(chat))
    const turn = chat.excerpt?.turn
    link.href = turn ? `#${chat.id}/${turn}` : `#${chat.id}`
    link.addEventListener('click', () => (this.sought = turn))
    const edit = iconButton('edit', texts.rename(titleOf(chat)), () => this.#rename(item, chat))
    const bin = iconButton('bin', texts.remove(titleOf(chat)), () => this.#delete(chat))
    const count = this.#jobsOf(chat.id)
    const jobs = count ? h('span', { class: 'jobs', title: texts.jobsName(count) }, texts.jobs(count)) : null
    const item = h('li', { 'data-chat': chat.id }, link, jobs, mark || null, edit, bin)
    return item
  }

  #rename(item, chat) {
    const field = h('input', { type: 'text', 'aria-label': texts.title, maxlength: 300 })
    field.value = titleOf(chat)
    const finish = async (title) => {
      if (this.renaming !== field) return
      this.renaming = null
      this.shape = null
      if (title && title !== chat.title)
        this.put(await this.client.request('PATCH', `/api/chats/${chat.id}`, { title }))
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
    const question = texts.removeQuestion(titleOf(chat))
    if (!(await confirmed(question, texts.removeNote, TEXTS.remove))) return
    await this.client.request('DELETE', `/api/chats/${chat.id}`)
    this.#drop(chat.id)
    this.#draw()
    if (chat.id === this.open) this.dispatchEvent(new Event('deleted'))
  }
}

const groupOf = (name, items) => h('section', { 'aria-label': name }, h('h2', {}, name), h('ul', {}, items))

export const titleOf = (chat) => chat?.title || texts.untitled

/** Shows the title, and the excerpt that a search found. The title may have changed since the search. */
function labelOf({ title, excerpt }) {
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
  if (days < 0) return texts.today
  if (days < 1) return texts.yesterday
  return days < 7 ? texts.thisWeek : texts.earlier
}
