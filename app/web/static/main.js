// Puts the page together.

import { Attachments } from './attachments.js'
import { Chats, titleOf } from './chats.js'
import { Composer } from './composer.js'
import { Conversation } from './conversation.js'
import { Documents } from './documents.js'
import { find, findAll, setText } from './dom.js'
import { listenToDrops } from './drops.js'
import { exportChat } from './export.js'
import { Session } from './session.js'
import { Settings } from './settings.js'
import { announce, Transcript } from './transcript.js'
import { hasEnded } from './turnstream.js'

const LOOK = 5_000 // milliseconds between two looks at the list of chats
const SOON = 800 // a connection that is back within this was never lost

const client = new Session()
const conversation = new Conversation(client)
const chats = new Chats(client)
new Settings(client, conversation)
const attachments = new Attachments(client, (text) => setText(find('#trouble'), text))
const composer = new Composer({
  send,
  open: () => conversation.id,
  stop: () => tried(() => conversation.cancel()),
  editLast,
  attachments,
})
const transcript = new Transcript(conversation, {
  answer,
  whole: (turn, call) =>
    client.request('GET', `/api/chats/${turn.chat_id}/turns/${turn.id}/results/${encodeURIComponent(call)}`),
  file: (id) => client.request('GET', `/api/uploads/${id}`),
  regenerate: (turn) => tried(() => conversation.regenerate(turn)),
  edit: (turn, text) => tried(() => conversation.edit(turn, text)),
  choose: (id) => tried(() => conversation.choose(id)),
  cancel: (turn) => tried(() => conversation.cancel(turn)),
})
listenToDrops(new Documents(client), attachments)

// --- what the page does ----------------------------------------------------------------------------------------------

function send(text, onBusy, files, chat = conversation.id) {
  return tried(async () => {
    if (chat !== conversation.id) throw new Error('You went to another chat meanwhile, so nothing was sent.')
    transcript.sticks = true
    await conversation.say(text, onBusy, files)
  })
}

function editLast() {
  const last = conversation.path.findLast((turn) => turn.role === 'user')
  if (last) transcript.view(last).edit()
}

/** What the server refused about an answer is said where it was given; that somebody else was first is no mistake. */
async function answer(turn, decision) {
  try {
    await conversation.answer(turn, decision)
  } catch (error) {
    return error.status === 409 ? null : error.message
  }
}

/** Whether it could be done; if not, the page says why. */
async function tried(work) {
  setText(find('#trouble'), '') // first, so that what ends well hides no trouble of what began later
  try {
    await work()
    return true
  } catch (error) {
    setText(find('#trouble'), error instanceof TypeError ? 'The server cannot be reached. Try again.' : error.message)
    return false
  }
}

// --- which chat is open ----------------------------------------------------------------------------------------------

async function route() {
  const [id, through = null] = location.hash.slice(1).split('/')
  if (id === (conversation.id ?? '') && through === conversation.through) return
  document.body.classList.remove('listing')
  transcript.sticks = true
  chats.mark(id)
  if (!id) conversation.close()
  else if (!(await tried(() => conversation.open(id, through)))) conversation.close()
  if (through && through === chats.sought) await tried(() => transcript.reach(through))
  head()
  if (matchMedia('(hover: hover)').matches) composer.focus()
}

function head() {
  const chat = chats.get(conversation.id)
  const title = conversation.id ? titleOf(chat) : 'New chat'
  setText(find('#title'), title)
  document.title = conversation.id ? `${title} · turnstream` : 'turnstream'
  for (const button of findAll('[data-export]')) button.disabled = !conversation.id
  offer()
}

let models

/** What can be attached is up to the model of the chat; of one that nobody described anything may be. */
async function offer() {
  const { settings } = chats.get(conversation.id) ?? conversation.draft
  models ??= client.request('GET', '/api/models').catch(() => (models = undefined))
  const known = (await models)?.models ?? []
  const named = (model) => [model.id, ...model.aliases].includes(settings?.model)
  const { can } = (settings?.model ? known.find(named) : known.find((model) => model.default)) ?? {}
  attachments.offer({ images: can?.includes('images') ?? true, documents: can?.includes('documents') ?? true })
}

/** The address names what is shown, so that a reload shows it again. */
function address() {
  const { id, through } = conversation
  const hash = `#${through ? `${id}/${through}` : id}`
  if (id && location.hash !== hash) history.replaceState(null, '', hash)
}

async function refresh() {
  chats.mark(conversation.id)
  await chats.refresh().catch(() => {}) // there is another look soon
}

// --- what is told ----------------------------------------------------------------------------------------------------

let lost

function connection(state) {
  clearTimeout(lost)
  const line = find('#connection')
  if (state === 'open') setText(line, '')
  else lost = setTimeout(() => setText(line, state === 'lost' ? 'Reconnecting …' : state), SOON)
}

let told = ''

/** Says once that an answer began, waits or ended. */
function tell(turn) {
  const word = hasEnded(turn) ? turn.status : turn.actions.length ? 'waiting' : 'running'
  const key = `${turn.id} ${word} ${turn.actions.map((action) => action.tool_use_id)}`
  composer.show(Boolean(conversation.running))
  if (key === told) return
  told = key
  announce(
    {
      running: 'Answering',
      waiting: `Waiting for you: ${turn.actions[0]?.name}`,
      complete: 'The answer is complete',
      cancelled: 'Stopped',
      error: 'The answer failed',
    }[word],
  )
}

conversation.on('connection', connection)
conversation.on('turn', tell)
conversation.on('path', () => {
  composer.show(Boolean(conversation.running))
  address()
})
conversation.on('chat', () => refresh())
conversation.on('deleted', () => (location.hash = ''))
chats.addEventListener('changed', head)
chats.addEventListener('deleted', () => (location.hash = ''))

// --- keys and buttons ------------------------------------------------------------------------------------------------

const themes = ['auto', 'light', 'dark']

function nextTheme() {
  const { dataset } = document.documentElement
  const theme = themes[(themes.indexOf(dataset.theme ?? 'auto') + 1) % themes.length]
  dataset.theme = theme
  localStorage.setItem('turnstream.theme', theme)
  find('#theme').setAttribute('aria-label', `Colours: ${theme}`)
  find('#theme').title = `Colours: ${theme}`
}

function search() {
  listing(true)
  find('#search').focus()
}

function newChat() {
  location.hash = ''
  conversation.close()
  route()
  composer.focus()
}

/** @param {boolean} [shown] */
const listing = (shown) => document.body.classList.toggle('listing', shown)

function key(event) {
  const command = event.ctrlKey || event.metaKey
  if (command && event.key.toLowerCase() === 'k') act(event, search)
  else if (command && event.shiftKey && event.key.toLowerCase() === 'o') act(event, newChat)
  else if (event.key === '/' && !event.target.closest('input, textarea, dialog')) act(event, () => composer.focus())
  else if (event.key === 'Escape' && document.body.classList.contains('listing')) act(event, () => listing(false))
}

function act(event, work) {
  event.preventDefault()
  work()
}

document.addEventListener('keydown', key)
addEventListener('hashchange', route)
find('#new-chat').addEventListener('click', newChat)
find('#theme').addEventListener('click', nextTheme)
find('#show-list').addEventListener('click', () => listing())
find('#veil').addEventListener('click', () => listing(false))
find('#chats').addEventListener('click', (event) => event.target.closest('a') && listing(false))
for (const button of findAll('[data-export]'))
  button.addEventListener('click', () => tried(() => exportChat(client, conversation, button.dataset.export)))
for (const button of findAll('[data-close]')) button.addEventListener('click', () => button.closest('dialog').close())
for (const button of findAll('[data-say]')) button.addEventListener('click', () => send(button.textContent.trim()))

// --- other tabs: the open chat tells of itself, the list is looked at ------------------------------------------------

const look = () => document.visibilityState === 'visible' && refresh()
setInterval(look, LOOK)
addEventListener('focus', look)
document.addEventListener('visibilitychange', look)

await refresh()
await route()
document.documentElement.dataset.ready = 'yes' // for those who drive the page
