// The panel of documents, which the tools of the server read. It shows them as a tree, and adds and removes them.

import { asked, confirmed, find, h, icon, iconButton, setText } from './dom.js'
import { Plain } from './prose.js'
import { TEXTS } from './texts.js'

const { documents: texts } = TEXTS

const address = (path) => `/api/documents/${path.split('/').map(encodeURIComponent).join('/')}`

export class Documents {
  constructor(client) {
    this.client = client
    this.dialog = find('#documents')
    this.tree = find('#tree')
    this.report = find('#upload-report')
    this.open = new Set()
    find('#open-documents').addEventListener('click', () => this.show())
    for (const name of ['#pick-files', '#pick-folder']) this.#listenToPicker(find(name))
  }

  async show() {
    if (!this.dialog.open) this.dialog.showModal()
    await this.#draw()
  }

  #listenToPicker(field) {
    field.addEventListener('change', async () => {
      await this.#put([...field.files].map((file) => [file.webkitRelativePath || file.name, file]))
      field.value = ''
    })
  }

  /** Shows the panel, and adds files by their paths. */
  async add(files) {
    await this.show()
    await this.#put(files)
  }

  async #put(files) {
    const refused = []
    for (const [place, [path, file]] of files.entries()) {
      setText(this.report, texts.adding(place + 1, files.length, path))
      await this.client.request('PUT', address(path), file).catch((error) => refused.push(`${path}: ${error.message}`))
    }
    const added = files.length - refused.length
    setText(this.report, [texts.added(texts.count(added)), ...refused].join('\n'))
    await this.#draw()
  }

  async #draw() {
    const documents = await this.#readAll().catch((error) => {
      if (error.status !== 404) throw error
      setText(this.report, texts.leftOut)
      return []
    })
    find('#no-documents').hidden = documents.length > 0
    this.tree.replaceChildren(this.#list(treeOf(documents)))
  }

  async #readAll() {
    const found = []
    for (let after = ''; after !== null;) {
      const page = await this.client.request(
        'GET',
        `/api/documents?limit=1000${after && `&after=${encodeURIComponent(after)}`}`,
      )
      found.push(...page.documents)
      after = page.next
    }
    return found
  }

  #list(folder) {
    const folders = [...folder.folders].map(([name, inner]) => this.#folder(name, inner))
    return h(
      'ul',
      {},
      folders,
      folder.files.map((file) => this.#file(file)),
    )
  }

  #folder(name, folder) {
    const label = h(
      'summary',
      {},
      icon('folder'),
      h('bdi', {}, name),
      h('span', { class: 'size' }, `${folder.paths.length}`),
    )
    const details = h('details', { open: this.open.has(folder.path) }, label, this.#list(folder))
    details.addEventListener('toggle', () => this.open[details.open ? 'add' : 'delete'](folder.path))
    const count = texts.count(folder.paths.length)
    return h(
      'li',
      {},
      details,
      iconButton('bin', texts.removeFolder(name), () => this.#remove(texts.folder(name), count, folder.paths)),
    )
  }

  #file({ path, name, size }) {
    const label = h(
      'button',
      { type: 'button', class: 'file', onclick: () => this.#open(path) },
      icon('file'),
      h('bdi', {}, name),
      h('span', { class: 'size' }, sizeOf(size)),
    )
    return h(
      'li',
      { 'data-path': path },
      label,
      iconButton('bin', texts.remove(path), () => this.#remove(texts.file(name), path, [path])),
    )
  }

  /** Shows the text of a document. */
  async #open(path) {
    try {
      const content = await this.client.request('GET', address(path))
      const { element } = new Plain(await content.text())
      Object.assign(element, { tabIndex: 0, role: 'group', ariaLabel: path })
      element.classList.add('document-text')
      await asked(path, element, h('footer', {}, h('button', { value: '' }, TEXTS.close)))
    } catch (error) {
      setText(this.report, `${path}: ${error.message}`)
    }
  }

  async #remove(name, summary, paths) {
    if (!(await confirmed(texts.removeQuestion(name), texts.removeNote(summary), texts.removeAction))) return
    for (const path of paths) await this.client.request('DELETE', address(path))
    setText(this.report, texts.removed(name))
    await this.#draw()
  }
}

/**
 * Returns the documents as a tree of folders. `paths` of a folder has the paths of all documents in it, at any depth.
 */
function treeOf(documents) {
  /** @type {any} */
  const root = { path: '', folders: new Map(), files: [], paths: [] }
  for (const { path, size } of documents) {
    const parts = path.split('/')
    const name = parts.pop()
    let folder = root
    for (const part of parts) {
      if (!folder.folders.has(part))
        folder.folders.set(part, { path: `${folder.path}${part}/`, folders: new Map(), files: [], paths: [] })
      folder = folder.folders.get(part)
      folder.paths.push(path)
    }
    folder.files.push({ path, name, size })
  }
  return root
}

function sizeOf(characters) {
  return characters < 1000 ? `${characters}` : `${(characters / 1000).toFixed(characters < 10_000 ? 1 : 0)} k`
}
