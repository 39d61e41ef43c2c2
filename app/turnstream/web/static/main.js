// The entry of the page: puts its parts together, and connects them with the address, keys and buttons.

import { showOwnAccount } from './account.js'
import { AppCalls } from './app-calls.js'
import { Attachments, listenToDrops } from './attachments.js'
import { Chats, titleOf } from './chats.js'
import { Composer } from './composer.js'
import { Conversation } from './conversation.js'
import { Documents } from './documents.js'
import { asked, confirmed, find, findAll, h, setText, touches } from './dom.js'
import { exportChat } from './export.js'
import { KeptFiles } from './kept-files.js'
import { markWords } from './marks.js'
import { showMembers } from './members.js'
import { amount, Models } from './models.js'
import { Notifications } from './notifications.js'
import { followPrompts, showResources } from './offers.js'
import { Outbox } from './outbox.js'
import { Queue } from './queue.js'
import { BASE, forgetShelf, Session, shelf } from './session.js'
import { showSchedules } from './schedules.js'
import { shareChat } from './share.js'
import { Settings } from './settings.js'
import { showAccount, signedIn } from './sign-in.js'
import { TEXTS } from './texts.js'
import { announce, Transcript } from './transcript.js'
import { hasEnded } from './turnstream.js'
import { Unsent } from './unsent.js'
import { Waiting } from './waiting.js'

const { page: texts } = TEXTS

const BRIEF = 800 // milliseconds: a connection that returns within this time is not reported as lost

const client = new Session()
const kept = new KeptFiles()
const conversation = new Conversation(client, kept)
const chats = new Chats(client, kept)
new Settings(client, conversation)
const waiting = new Waiting(client, chats)
new Notifications(chats, report)
const models = new Models(client)
const attachments = new Attachments(client, kept, report)
const outbox = new Outbox(client, kept, (file, id) => attachments.upload(file, id))
const composer = new Composer({
  send,
  stop: () => attempt(() => conversation.cancel()),
  editLast,
  attachments,
})
const wholeResult = (turn, call) =>
  client.request('GET', `/api/chats/${turn.chat_id}/turns/${turn.id}/results/${encodeURIComponent(call)}`)
const readUpload = (id) =>
  client.request('GET', `/api/uploads/${id}${chats.roleIn(conversation.id) ? `?chat=${conversation.id}` : ''}`)
const transcript = new Transcript(conversation, {
  answer,
  wholeResult,
  why: (turn) => client.request('GET', `/api/chats/${turn.chat_id}/turns/${turn.id}/why`),
  readUpload,
  readApp: (server, uri) => client.request('POST', '/api/mcp/apps', { server, uri }),
  propose: (text) => composer.fill([composer.field.value, text].filter(Boolean).join('\n\n'), []),
  appCalls: (turn, call) => new AppCalls(client, turn, call, { wholeResult, readUpload }),
  regenerate: (turn) => attempt(() => conversation.regenerate(turn)),
  anotherModel,
  goOn,
  edit: (turn, text) => attempt(() => conversation.edit(turn, text)),
  choose: (id) => attempt(() => conversation.choose(id)),
  cancel: (turn) => attempt(() => conversation.cancel(turn)),
  cancelCall: (turn, call) => attempt(() => conversation.cancelCall(turn, call)),
  branch,
  cut: (turn, block) => attempt(() => conversation.cut(turn, block)),
  fork: (turn) => attempt(async () => (location.hash = await conversation.fork(turn))),
  remove,
})
new Unsent(outbox, conversation, (text, files) => composer.putBack(text, files))
new Queue(client, conversation, { attempt, putBack: (text) => composer.putBack(text, []) })
listenToDrops(new Documents(client), attachments)

// --- actions ---------------------------------------------------------------------------------------------------------

function send(text, onBusy = 'steer', files = []) {
  const { id } = conversation
  const follows = outbox.of(id).length > 0 // then the turn before the message is not known yet
  const { parent_id, ...options } = conversation.optionsFor(files.length && onBusy === 'steer' ? 'enqueue' : onBusy)
  transcript.sticks = true
  report('')
  outbox.add(id, text, files, follows || !parent_id ? options : { ...options, parent_id })
}

function editLast() {
  const last = conversation.path.findLast((turn) => turn.role === 'user')
  if (last) transcript.view(last).edit()
}

async function anotherModel(turn) {
  const model = await models.choose(TEXTS.models.titleAgain, turn.model)
  if (model) await attempt(() => conversation.regenerate(turn, { model }))
}

function goOn(turn) {
  conversation.branchFrom(turn)
  send(TEXTS.failures.goOnMessage)
}

async function chooseModel() {
  const model = await models.choose(TEXTS.models.title, find('#model').textContent)
  if (model) await attempt(() => setModel(model))
}

async function setModel(model) {
  const { id, draft } = conversation
  if (id) chats.put(await client.request('PATCH', `/api/chats/${id}`, { settings: { model } }))
  else conversation.plan({ ...draft, settings: { ...draft.settings, model } })
  await showModel()
}

function branch(turn) {
  conversation.branchFrom(turn)
  composer.focus()
}

async function remove(turn) {
  const consequence = turn.role === 'user' ? texts.removeMessage : texts.removeAnswer
  if (await confirmed(texts.removeQuestion, consequence, TEXTS.remove)) await attempt(() => conversation.remove(turn))
}

/** Returns the reason why an answer was refused, or null. A 409 needs no reason: another person answered first. */
async function answer(turn, decision) {
  try {
    await conversation.answer(turn, decision)
  } catch (error) {
    return error.status === 409 ? null : error.message
  }
}

function report(trouble) {
  setText(find('#trouble'), trouble)
}

/** Runs `work`, and shows the reason if it fails. Resolves to whether it succeeded. */
async function attempt(work) {
  report('') // cleared before the work: its success must not hide a later report
  try {
    await work()
    return true
  } catch (error) {
    report(error instanceof TypeError ? texts.away : error.message)
    return false
  }
}

// --- the open chat and the address -----------------------------------------------------------------------------------

/** Shows the chat that the address names. With `anew`, shows it again even if it is open. */
async function route(anew = false) {
  const [id, through = null] = location.hash.slice(1).split('/')
  if (!anew && id === (conversation.id ?? '') && through === conversation.through) return
  document.body.classList.remove('listing')
  composer.open(id || null)
  transcript.sticks = true
  chats.mark(id)
  const opened = id ? attempt(() => conversation.open(id, through)) : conversation.close()
  showHead() // at once: without a network it may take long to open the chat
  if (id && !(await opened)) conversation.close()
  else if (id) await attempt(() => chats.know(id))
  if (id !== (conversation.id ?? '')) return
  const sought = through && through === chats.sought
  if (sought) await attempt(() => transcript.reach(through))
  markWords(find('#turns'), sought ? chats.words.split(/\s+/) : [])
  showHead()
  if (matchMedia('(hover: hover)').matches) composer.focus()
}

function showHead() {
  const title = conversation.id ? titleOf(chats.get(conversation.id)) : texts.newChat
  setText(find('#title'), title)
  document.title = conversation.id ? `${title} · turnstream` : 'turnstream'
  for (const button of findAll('[data-export], #share, #members')) button.disabled = !conversation.id
  const role = chats.roleIn(conversation.id) ?? '' // set in a chat of another owner
  document.body.dataset.role = role
  find('#reads').hidden = role !== 'read'
  showModel()
}

/** Shows the model that answers next and the cost so far, and allows the kinds of files that the model can read. */
async function showModel() {
  const { settings } = chats.get(conversation.id) ?? conversation.draft
  const name = settings?.model ?? conversation.lastModel
  const model = await models.find(name)
  const { can } = model ?? {}
  setText(find('#model'), model?.id ?? name ?? TEXTS.models.unknown)
  find('#open-models').setAttribute('aria-label', TEXTS.models.button(find('#model').textContent))
  setText(find('#cost'), conversation.cost ? TEXTS.models.cost(amount(conversation.cost)) : '')
  const own = !chats.roleIn(conversation.id) // in a chat of another owner, a member cannot attach files
  const allows = (ability) => own && (can?.includes(ability) ?? true)
  attachments.allow(allows)
}

/** Writes the displayed chat into the address, so that a reload shows it again. */
function showAddress() {
  const { id, through } = conversation
  const hash = `#${through ? `${id}/${through}` : id}`
  if (id && location.hash !== hash) history.replaceState(null, '', hash)
}

const leave = () => (location.hash = '')

/**
 * Returns a function that removes what the owner keeps in this browser. Finds the place now: after the session, it is
 * unknown.
 */
function forgetting() {
  const left = shelf()
  return () => kept.clear(left.prefix).then(() => forgetShelf(left))
}

/**
 * Lets a reload without a network show the page, if the browser allows service workers: over HTTPS, or on this machine.
 */
function keepPage() {
  const address = `${BASE}/offline.js`
  const { trustedTypes } = /** @type {any} */ (globalThis)
  const policy = trustedTypes?.createPolicy('offline', { createScriptURL: () => address })
  navigator.serviceWorker?.register(policy?.createScriptURL('') ?? address).catch(() => {})
}

// --- status lines ----------------------------------------------------------------------------------------------------

let lost

function showConnection(state) {
  clearTimeout(lost)
  const line = find('#connection')
  if (state === 'open') setText(line, '')
  else lost = setTimeout(() => setText(line, state === 'lost' ? texts.reconnecting : state), BRIEF)
}

let announced = ''

/** Announces once that an answer began, waits or ended. */
function announceTurn(turn) {
  const state = hasEnded(turn) ? turn.status : turn.actions.length ? 'waiting' : 'running'
  const key = `${turn.id} ${state} ${turn.actions.map((action) => action.tool_use_id)}`
  composer.show(Boolean(conversation.running))
  if (state === 'complete') showModel()
  if (key === announced) return
  announced = key
  announce(state === 'waiting' ? texts.waiting(turn.actions[0].name) : texts.announced[state])
}

conversation.on('connection', showConnection)
conversation.on('turn', announceTurn)
conversation.on('path', () => {
  composer.show(Boolean(conversation.running))
  showAddress()
  showModel()
})
conversation.on('chat', () => {
  chats.mark(conversation.id)
  showHead()
})
conversation.on('deleted', leave)
outbox.on('sent', ({ chat, text }, exchange) => {
  if (chat !== conversation.id) return
  conversation.take(exchange, text)
  if (!chat) composer.begin(conversation.id)
})
chats.addEventListener('changed', showHead)
chats.addEventListener('deleted', leave)

// --- keys and buttons ------------------------------------------------------------------------------------------------

const THEMES = ['auto', 'light', 'dark']

function nextTheme() {
  const { dataset } = document.documentElement
  const theme = THEMES[(THEMES.indexOf(dataset.theme ?? 'auto') + 1) % THEMES.length]
  dataset.theme = theme
  localStorage.setItem('turnstream.theme', theme)
  find('#theme').setAttribute('aria-label', texts.colours(theme))
  find('#theme').title = texts.colours(theme)
}

function newChat() {
  leave()
  route(true)
  composer.focus()
}

/** @param {boolean} [shown] */
const showList = (shown) => document.body.classList.toggle('listing', shown)

/** Folds the list, or unfolds it; on a narrow page it is shown above the chat. */
function toggleList() {
  if (matchMedia('(max-width: 46rem)').matches) return showList()
  const { dataset } = document.documentElement
  dataset.list = dataset.list === 'folded' ? 'open' : 'folded'
  localStorage.setItem('turnstream.list', dataset.list)
}

function showKeys() {
  const { title, rows } = TEXTS.keys
  const list = rows.map(([key, does]) => h('div', {}, h('dt', {}, h('kbd', {}, key)), h('dd', {}, does)))
  asked(title, h('dl', { class: 'keys' }, list), h('footer', {}, h('button', { value: '' }, TEXTS.close)))
}

function search() {
  if (document.documentElement.dataset.list === 'folded') toggleList()
  showList(true)
  find('#search').focus()
}

function shortcutOf(event) {
  const command = event.ctrlKey || event.metaKey
  if (command && event.key.toLowerCase() === 'k') return search
  if (command && event.shiftKey && event.key.toLowerCase() === 'o') return newChat
  if (event.key === '/' && !event.target.closest('input, textarea, dialog')) return () => composer.focus()
  if (event.key === '?' && !event.target.closest('input, textarea, dialog')) return showKeys
  if (event.key === 'Escape' && document.body.classList.contains('listing')) return () => showList(false)
  if (event.key === 'Escape' && conversation.running && !event.target.closest('dialog, .editor, #sidebar'))
    return () => attempt(() => conversation.cancel())
}

document.addEventListener('keydown', (event) => {
  const shortcut = shortcutOf(event)
  if (shortcut) event.preventDefault()
  shortcut?.()
})
/** Limits the page to the height above a touch keyboard, even in browsers that lay the keyboard over the page. */
function fitViewport() {
  const { scale, height } = /** @type {VisualViewport} */ (visualViewport)
  if (scale === 1) document.documentElement.style.setProperty('--visible', `${height}px`)
  if (transcript.sticks) transcript.toEnd()
}

if (touches()) visualViewport?.addEventListener('resize', fitViewport)
addEventListener('hashchange', () => route())
find('#new-chat').addEventListener('click', newChat)
find('#open-models').addEventListener('click', chooseModel)
find('#theme').addEventListener('click', nextTheme)
find('#own-account').addEventListener('click', () => attempt(() => showOwnAccount(client)))
find('#attach-resource').addEventListener('click', () => attempt(() => showResources(client, attachments)))
find('#show-keys').addEventListener('click', showKeys)
find('#show-list').addEventListener('click', toggleList)
find('#veil').addEventListener('click', () => showList(false))
find('#chats').addEventListener('click', (event) => event.target.closest('a') && showList(false))
for (const button of findAll('[data-export]'))
  button.addEventListener('click', () => attempt(() => exportChat(client, conversation, button.dataset.export)))
find('#open-schedules').addEventListener('click', () => attempt(() => showSchedules(client, conversation.id)))
find('#share').addEventListener('click', () => {
  find('#share').closest('details').open = false
  attempt(() => shareChat(client, conversation))
})
find('#members').addEventListener('click', () => {
  find('#members').closest('details').open = false
  attempt(() => showMembers(client, conversation))
})
for (const button of findAll('[data-close]')) button.addEventListener('click', () => button.closest('dialog').close())
for (const button of findAll('[data-say]')) button.addEventListener('click', () => send(button.textContent.trim()))

await chats.load()
await route(true)
// Draws costs again: those drawn before the list of models was read have no currency.
models.list().then(() => conversation.path.forEach((turn) => transcript.view(turn)?.update(turn)))
outbox.resume()
document.documentElement.dataset.ready = 'yes' // for programs that drive the page
keepPage()
if (signedIn()) attempt(() => showAccount(client, forgetting))
client
  .insist('GET', '/api/me')
  .then(async ({ owner, scopes, features }) => {
    await client.showsOnly(owner)
    for (const button of findAll('#share, #members')) button.hidden = !features?.includes('sharing')
    find('#open-schedules').hidden = !features?.includes('schedules')
    find('#own-account').hidden = !features?.includes('self_service')
    document.documentElement.dataset.features = features?.join(' ') ?? ''
    if (features?.includes('inbox')) waiting.follow()
    if (features?.includes('mcp')) {
      find('#attach-resource').hidden = false
      followPrompts(client, composer, report)
    }
    if (features?.includes('sharing')) await chats.followShared()
    // A server without the extension `admin` has no such page.
    if (scopes.includes('admin')) find('#operate').hidden = !(await fetch('admin', { method: 'HEAD' })).ok
  })
  .catch(() => {})
