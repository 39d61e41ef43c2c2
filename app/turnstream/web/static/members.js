// Members of a chat: the dialog in which its owner adds and removes them, and changes their roles.

import { asked, attempts, h, iconButton } from './dom.js'
import { TEXTS } from './texts.js'

const { members: texts } = TEXTS

export async function showMembers(client, conversation) {
  const path = `/api/chats/${conversation.id}/members`
  const { members } = await client.request('GET', path)
  const list = h('ul', { class: 'links' })
  const { trouble, attempt } = attempts()
  const put = (member, role) => client.request('POST', path, { member, role })
  const itemOf = ({ member, role }) => {
    const choice = roleChoice(texts.roleOf(member), role)
    choice.addEventListener('change', () => attempt(() => put(member, choice.value)))
    const remove = () =>
      attempt(async () => {
        await client.request('DELETE', `${path}/${encodeURIComponent(member)}`)
        item.remove()
      })
    const item = h(
      'li',
      { 'data-member': member },
      h('bdi', {}, member),
      choice,
      iconButton('bin', texts.remove(member), remove),
    )
    return item
  }
  const name = h('input', { type: 'text', maxlength: 255, autocomplete: 'off', spellcheck: 'false' })
  const role = roleChoice(texts.role, 'read')
  const add = () =>
    attempt(async () => {
      const added = await put(name.value, role.value)
      for (const item of [...list.children]) if (item.dataset.member === added.member) item.remove()
      list.append(itemOf(added))
      name.value = ''
    })
  name.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter') return
    event.preventDefault() // the form of the dialog would close
    add()
  })
  list.append(...members.map(itemOf))
  await asked(
    texts.title,
    h('p', { class: 'hint' }, texts.about),
    list,
    h('label', {}, texts.name, name),
    h('label', {}, texts.role, role),
    trouble,
    h('footer', {}, h('button', { value: '' }, TEXTS.close), addButton(add)),
  )
}

const addButton = (add) => h('button', { type: 'button', class: 'primary', onclick: add }, texts.add)

function roleChoice(label, chosen) {
  const options = texts.roles.map(([role, text]) => h('option', { value: role, selected: role === chosen }, text))
  return h('select', { 'aria-label': label }, ...options)
}
