"""What a person sees: progress, tables, plots and the widget panel. Nothing else imports from here at its top."""
