// Sets the theme and the state of the list before the first paint: a later script would first show another state.
document.documentElement.dataset.theme = localStorage.getItem('turnstream.theme') ?? 'auto'
document.documentElement.dataset.list = localStorage.getItem('turnstream.list') ?? 'open'
